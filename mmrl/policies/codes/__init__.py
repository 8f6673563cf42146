"""Models that draw by tokens: a picture is a row of codes, written one after the other as text is."""
