"""Small models, contests, published recipes and demos: what makes mmrl visible, and nothing that trains needs."""
