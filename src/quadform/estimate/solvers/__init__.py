"""Linear systems and functions of an operator from products with it; the names are those of `quadform.estimate`."""
