"""The experiments of the paper, figure by figure."""
