// What enters a league: a row of the table of recipes, or a file of the user's.
#pragma once

#include <string>
#include <vector>

#include "hub/wanted_model.h"
#include "train/options.h"

namespace moe {

struct LeagueEntry {
  WantedModel wanted;
  // The share of the twin's time that it trains for, and then it may set what others may not;
  // 0: it is matched to the twin by work.
  double time = 0;
  TrainOptions train;
  std::vector<std::string> sets;  // of the model's shape and of `train`, by the names of the fields
};

// Of a model: what all arms of a league share, and what an entry may say of its own.
FieldList shape_fields(WantedModel&);
FieldList entry_fields(WantedModel&);
// Of training: what an entry with a time may set.
FieldList own_training_fields(TrainOptions&);

// `path`: a JSON file of stages, of Routing options, or, where it names a "time", of options of
// Model, Routing and Training. Usage errors name the file and the field.
LeagueEntry read_entry(const std::string& path);

}  // namespace moe
