"""Functions of the displacement: filters given by coefficients, and by networks."""
