"""Files that data sets name: pictures, clips, paths below a folder."""
