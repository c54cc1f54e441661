"""Are the answers of `q7x2 why` and `q7x2 experiment` right, where the right answer is known?"""
