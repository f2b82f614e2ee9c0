"""Drawn faces: `shape` has the landmarks in three dimensions, `look` the colours, hair and light,
and `drawing` the picture."""
