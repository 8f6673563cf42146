"""The differences between policies that write text and policies that draw, as the commands see them."""
