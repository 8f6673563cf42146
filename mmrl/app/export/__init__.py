"""A trained model on its way out: folder, card, hub."""
