"""Drawn faces.

`shape` has the landmarks in three dimensions, `look` colours and hair, `head` the light and the
hair on the head, and `drawing` the picture.
"""
