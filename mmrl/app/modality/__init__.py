"""What differs between policies that write text and policies that draw, as the commands see it."""
