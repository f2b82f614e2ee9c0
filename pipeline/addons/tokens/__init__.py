"""Files of tokens: where sequences lie in them, as Megatron or flat files say."""
