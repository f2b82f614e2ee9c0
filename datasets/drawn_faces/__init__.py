"""Faces that are drawn: their shape, their look, and the picture of both.

`shape` has the landmarks in three dimensions, `look` the colours and the hair, `canvas` the means
of drawing, `head` the light and the hair on the head, and `drawing` puts a picture together.
"""
