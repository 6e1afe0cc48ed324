#include "train/options.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "options/read.h"
#include "support/files.h"

namespace moe::options_test {
namespace {

using test::message_of;

TrainOptions read_back(const Json& json) {
  TrainOptions o;
  FieldList list = fields(o);
  read_record(list, json, "f.json");
  return o;
}

TEST(Options, DefaultsAreValid) { EXPECT_NO_THROW(validate(TrainOptions{})); }

TEST(Options, SurviveJson) {
  TrainOptions o;
  o.steps = 12;
  o.lr = 0.1;
  o.min_lr = 1e-5;
  o.schedule = ScheduleKind::linear;
  o.seed = (uint64_t{1} << 63) - 1;
  o.dtype = DType::bf16;
  o.shuffle = Shuffle::none;
  o.decay_all = o.recompute = true;
  o.threads = 3;
  o.mix = {{"german", 2}, {"a b", 0}};
  o.hold_out = 0.05;
  o.optimizer = OptimizerKind::muon;
  o.momentum = 0.5;
  o.cooldown = 0.1;
  o.tune = Tune::lora_router;
  o.lora_rank = 3;
  o.lora_alpha = 5;
  o.lora_shared = true;
  o.hot_share = 0.25;
  o.hot = {{0, {2, 5}, 0.625}, {3, {1}, 0.3}};
  o.teacher_weight = 0.25;
  o.minutes = 1.5;
  o.replans = {{3, 20}, {5, 9}};
  TrainOptions back = read_back(Json::parse(to_json(fields(o)).dump()));
  EXPECT_EQ(to_json(fields(back)), to_json(fields(o)));
  EXPECT_EQ(back.lr, 0.1);
  EXPECT_EQ(back.mix.at("german"), 2);
  EXPECT_FALSE(back.warmup.has_value());
  EXPECT_EQ(back.replans, o.replans);
  EXPECT_EQ(back.hot, o.hot);
  EXPECT_TRUE(mathematical_differences(resolved(o), resolved(back)).empty());
}

TEST(Options, AbsentKeysTakeDefaultsAndUnknownOnesAreRefused) {
  EXPECT_EQ(read_back(Json{{"steps", 3}}).steps, 3);
  EXPECT_EQ(read_back(Json{{"steps", 3}}).batch, TrainOptions{}.batch);
  const std::string message = message_of([] { read_back(Json{{"stepz", 3}}); });
  EXPECT_NE(message.find("f.json"), std::string::npos) << message;
  EXPECT_NE(message.find("steps"), std::string::npos) << message;
}

// Ten a run; fewer where they would compute more than a tenth of what the steps do.
TEST(Options, EvaluationsNobodyAskedFor) {
  TrainOptions o;
  o.context = 256;
  o.batch = 8;
  o.eval_tokens = 20480;  // ten steps, forward only
  for (const auto& [steps, every] :
       {std::pair{1000, 100}, {1001, 101}, {250, 36}, {60, 0}, {1, 0}}) {
    o.steps = steps;
    EXPECT_EQ(*resolved(o).eval_every, every) << steps;
  }
  o.eval_every = 7;
  EXPECT_EQ(*resolved(o).eval_every, 7);
}

TEST(Options, AbsentValuesAreFilledIn) {
  TrainOptions o;
  o.lr = 0.02;
  o.steps = 50;
  EXPECT_DOUBLE_EQ(*resolved(o).min_lr, 0.002);
  EXPECT_EQ(*resolved(o).warmup, 5);
  EXPECT_GE(resolved(o).threads, 1);
  o.steps = 100000;
  EXPECT_EQ(*resolved(o).warmup, 100);
}

// A number of steps that is not fitted yet stands in no warm-up's way.
TEST(Options, StepsThatAreToBeFittedLeaveRoomForAnyWarmUp) {
  TrainOptions o;
  leave_room_for_warmup(o);
  EXPECT_EQ(o.steps, TrainOptions{}.steps);
  o.warmup = 2000;
  leave_room_for_warmup(o);
  EXPECT_EQ(o.steps, 2001);
  EXPECT_NO_THROW(validate(o));
  o.warmup = std::numeric_limits<int64_t>::max();
  leave_room_for_warmup(o);
  EXPECT_FAILS(validate(o), "warmup is 9223372036854775807 of 4294967296 steps");
}

TEST(Options, WhatHasNoMeaningIsWrongUsageAndNamesTheField) {
  const auto refused = [](const char* name, auto&& change) {
    TrainOptions o;
    change(o);
    try {
      validate(o);
      ADD_FAILURE() << name << " was accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), Error::Kind::usage);
      EXPECT_NE(std::string(e.what()).find(name), std::string::npos) << e.what();
    }
  };
  refused("context", [](TrainOptions& o) { o.context = 0; });
  refused("batch", [](TrainOptions& o) { o.batch = -1; });
  refused("batch", [](TrainOptions& o) { o.batch = 1 << 20, o.context = 1 << 20; });
  refused("accumulate", [](TrainOptions& o) { o.accumulate = 0; });
  refused("steps", [](TrainOptions& o) { o.steps = 0; });
  refused("lr", [](TrainOptions& o) { o.lr = 0; });
  refused("lr", [](TrainOptions& o) { o.lr = std::nan(""); });
  refused("min_lr", [](TrainOptions& o) { o.min_lr = 2 * o.lr; });
  refused("warmup", [](TrainOptions& o) { o.warmup = o.steps; });
  refused("momentum", [](TrainOptions& o) { o.momentum = 1; });
  refused("cooldown", [](TrainOptions& o) { o.cooldown = 1; });
  refused("keep_stable", [](TrainOptions& o) { o.keep_stable = true; });
  refused("weight_decay", [](TrainOptions& o) { o.weight_decay = -1; });
  refused("beta1", [](TrainOptions& o) { o.beta1 = 1; });
  refused("beta2", [](TrainOptions& o) { o.beta2 = std::nan(""); });
  refused("eps", [](TrainOptions& o) { o.eps = 0; });
  refused("clip", [](TrainOptions& o) { o.clip = -1; });
  refused("seed", [](TrainOptions& o) { o.seed = ~uint64_t{0}; });
  refused("mix", [](TrainOptions& o) { o.mix["a"] = -1; });
  refused("mix", [](TrainOptions& o) { o.mix["a"] = 2, o.shuffle = Shuffle::none; });
  refused("hold_out", [](TrainOptions& o) { o.hold_out = 1; });
  refused("hold_out", [](TrainOptions& o) { o.hold_out = std::nan(""); });
  refused("save_every", [](TrainOptions& o) { o.save_every = -1; });
}

TEST(Options, NamesOfferTheNearest) {
  TrainOptions o;
  FieldList list = fields(o);
  list.at("schedule").set("linear");
  EXPECT_EQ(o.schedule, ScheduleKind::linear);
  EXPECT_FAILS(list.at("schedule").set("cosin"), "schedule is \"cosin\"; did you mean \"cosine\"?");
  EXPECT_FAILS(list.at("dtype").set("bf61"), "bf16");
  EXPECT_FAILS(list.at("shuffle").set("epochs"), "did you mean \"epoch\"?");
}

TEST(Options, DifferencesThatMatterAreNamedWithBothValues) {
  TrainOptions a = resolved(TrainOptions{}), b = a;
  b.recompute = true;
  b.save_every = 5;
  b.threads = 64;
  EXPECT_TRUE(mathematical_differences(a, b).empty());
  b.lr = 0.5;
  b.schedule = ScheduleKind::constant;
  const std::vector<std::string> changes = mathematical_differences(a, b);
  ASSERT_EQ(changes.size(), 2u);
  EXPECT_EQ(spelled(changes[0]), "lr was 0.001 and is now 0.5");
  EXPECT_EQ(spelled(changes[1]), "schedule was \"cosine\" and is now \"constant\"");
}

}  // namespace
}  // namespace moe::options_test
