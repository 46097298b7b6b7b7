"""The paper's experiments, figure by figure: `efface reproduce`.

``presets`` says how large a run is, ``bench`` holds data and cores, ``specimen`` one trained model and its
requests, ``procedures`` the forgetting methods as they are run here. ``figures/`` has one file per figure and
``catalog`` their names; ``run`` measures, ``present`` draws.
"""
