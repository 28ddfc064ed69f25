"""Questions about labelled states: how likely a goal is reached, what is paid until then, within how many steps."""
