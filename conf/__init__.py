"""The YAML files of every group: what `initialize_config_module("penstock.conf")` composes."""
