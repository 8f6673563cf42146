"""The vocabulary every room speaks; imports torch, jaxtyping and the standard library only."""
