"""What paired scores show: estimates, bounds that hold their level, early stopping, simulations of the rule."""
