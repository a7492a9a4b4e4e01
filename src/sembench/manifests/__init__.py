"""Manifests: read, written, frozen, verified and audited."""
