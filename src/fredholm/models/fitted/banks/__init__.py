"""Banks of features, each with a linear head in closed form, and columns of tables that hold a bank."""
