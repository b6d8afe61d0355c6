"""Which examples are learnt from, chosen by, and measured on."""
