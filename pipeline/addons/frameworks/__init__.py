"""How do our loaders stay what they are in the loops of other frameworks?"""
