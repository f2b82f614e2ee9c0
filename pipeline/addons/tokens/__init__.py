"""Files of tokens: where sequences lie in them, as Megatron or flat files say."""

from penstock.installed import AddOn, Callables

ADDON = AddOn(
    only_with=(),
    rules=("penstock.addons.tokens.rules:packing",),
    callables=(
        Callables(
            "penstock.addons.tokens.token_files",
            "a torch.utils.data.Dataset",
            "torch.utils.data.Dataset",
        ),
        Callables("penstock.addons.tokens.sequence_packing", "a sampler"),
        Callables("penstock.addons.tokens.flatten", "a collate class"),
        Callables("penstock.addons.tokens.byte_pairs", "a transform"),
        Callables("penstock.addons.tokens.language_model", "a model or its objective"),
    ),
    wrapper="penstock.addons.tokens.wrapper:Vocabularies",
)
