"""The steps of the lecture, by what they are about."""
