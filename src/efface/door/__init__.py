"""The front door: one class for people who come from scikit-learn, timm or transformers."""
