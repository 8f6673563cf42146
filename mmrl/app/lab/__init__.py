"""Methods and models compared: arena, recipes, comparison, evaluation."""
