"""Small vision-language and language models of the real classes."""
