"""Add-ons: packages above the core, which it never imports. Each can be deleted."""
