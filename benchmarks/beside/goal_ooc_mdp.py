import ooc_mdp

question = ooc_mdp.Reachability("finished & all_coins_equal_1", sense="min")
answer = ooc_mdp.solve("consensus.umb", question).initial[0].value
