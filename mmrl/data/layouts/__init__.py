"""Other people's layouts of data, one per file: how each is recognised, and how its rows are said in our words."""
