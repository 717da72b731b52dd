"""The notices of clouds that take a machine back: who gives them, how they are asked for, what they say."""
