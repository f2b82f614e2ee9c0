"""Which classifiers of pictures does timm have? They are built as they are, without a download."""
