import stormpy

model = stormpy.build_model_from_umb("consensus.umb")
question = stormpy.parse_properties('Pmin=? [F ("finished" & "all_coins_equal_1")]')[0]
answer = stormpy.model_checking(model, question).get_value(model.initial_states[0])
