"""Reading, checking, converting and splitting data sets; what the files in datasets/ share."""
