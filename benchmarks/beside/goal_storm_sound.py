import stormpy

model = stormpy.build_model_from_umb("consensus.umb")
question = stormpy.parse_properties('Pmin=? [F ("finished" & "all_coins_equal_1")]')[0]
environment = stormpy.Environment()
environment.solver().force_soundness = True
answer = stormpy.model_checking(model, question, environment=environment).get_value(model.initial_states[0])
