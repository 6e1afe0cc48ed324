// Whole runs: what is on disk after them, resuming, and what is refused.
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <filesystem>

#include "formats/safetensors.h"
#include "support/routings.h"
#include "support/run_session.h"
#include "train/checkpoint.h"
#include "train/metrics.h"
#include "train/run_lock.h"
#include "train/schedule.h"
#include "train/step_lines.h"

namespace moe::train_test {
namespace {

using namespace test;

class Resume : public testing::TestWithParam<std::pair<OptimizerKind, DType>> {};
INSTANTIATE_TEST_SUITE_P(Ways, Resume,
                         testing::Values(std::pair(OptimizerKind::adamw, DType::f32),
                                         std::pair(OptimizerKind::adamw, DType::bf16),
                                         std::pair(OptimizerKind::muon, DType::f32),
                                         std::pair(OptimizerKind::muon, DType::bf16)),
                         [](const auto& p) {
                           return fmt::format("{}_{}", name_of(p.param.first),
                                              name_of(p.param.second));
                         });

// Dropout, router noise, capacity, shuffling and accumulation are on.
TEST_P(Resume, TwoAndThreeStepsAreFiveBitForBit) {
  const TempFolder folder;
  RunSession whole{folder / "whole"}, parts{folder / "parts"};
  for (RunSession* s : {&whole, &parts}) {
    s->options.optimizer = GetParam().first;
    s->options.dtype = GetParam().second;
    s->options.accumulate = 2;
    s->options.shuffle = Shuffle::epoch;
  }
  const TrainSummary uninterrupted = whole.start();
  const TrainSummary first = parts.start(2);
  EXPECT_TRUE(first.interrupted);
  EXPECT_EQ(first.last.step, 2);
  const TrainSummary second = parts.resume();
  EXPECT_FALSE(second.interrupted);
  EXPECT_EQ(second.last.step, 5);
  EXPECT_EQ(second.last.ce, uninterrupted.last.ce);
  EXPECT_EQ(second.last.tokens, uninterrupted.last.tokens);
  EXPECT_GT(second.last.seconds, first.last.seconds);
  const Safetensors a = Safetensors::open(whole.out + "/model.safetensors"),
                    b = Safetensors::open(parts.out + "/model.safetensors");
  ASSERT_EQ(a.names(), b.names());
  for (const NamedTensor& t : a.tensors()) EXPECT_TRUE(same_bits(t.value, b.get(t.name))) << t.name;
  const Safetensors ta = Safetensors::open(whole.out + "/trainer-5.safetensors"),
                    tb = Safetensors::open(parts.out + "/trainer-5.safetensors");
  EXPECT_EQ(ta.names(), tb.names());
  for (const NamedTensor& t : ta.tensors())
    EXPECT_TRUE(same_bits(t.value, tb.get(t.name))) << t.name;
  EXPECT_EQ(steps_in(parts.out + "/metrics.jsonl"), (std::vector<int64_t>{1, 2, 3, 4, 5}));
}

// What the routers learn beside the gradient goes on too: selection biases and thresholds, with
// noise and counts over micro-batches.
TEST(Train, RoutingIsResumedBitForBit) {
  for (const char* recipe : {"deepseek-v3", "expert-choice", "shazeer", "qwen3-moe", "gshard"}) {
    SCOPED_TRACE(recipe);
    const TempFolder folder;
    RunSession whole{folder / "whole"}, parts{folder / "parts"};
    for (RunSession* s : {&whole, &parts}) {
      s->config.routing = small_routing(recipe, 8, 2);
      s->options.batch = 2;
      s->options.accumulate = 2;
      s->options.steps = 4;
      s->options.threads = 1;
    }
    std::unique_ptr<Model> model;
    whole.start(0, &model);
    parts.start(2);
    parts.resume();
    const Safetensors a = Safetensors::open(whole.out + "/model.safetensors"),
                      b = Safetensors::open(parts.out + "/model.safetensors");
    ASSERT_EQ(a.names(), b.names());
    for (const NamedTensor& t : a.tensors())
      EXPECT_TRUE(same_bits(t.value, b.get(t.name))) << t.name;
    const Safetensors moments = Safetensors::open(parts.out + "/trainer-4.safetensors");
    for (const Param* p : model->params()) {
      EXPECT_EQ(moments.contains("m." + p->name), p->is_trained()) << p->name;
      if (!p->is_trained())
        EXPECT_GT(norm(values(p->value)), 0)
            << p->name << " must have moved, or this proves nothing";
    }
  }
}

TEST(Train, WhatIsOnDisk) {
  const TempFolder folder;
  RunSession s{folder / "deep/er/out"};
  s.options.save_every = 2;
  std::vector<int64_t> saves;
  auto model = fresh(s.config);
  TrainCallbacks callbacks;
  callbacks.on_save = [&](int64_t step, const std::string& where) {
    EXPECT_EQ(where, s.out);
    saves.push_back(step);
  };
  train(*model, s.job(), callbacks, kGoOn);
  EXPECT_EQ(saves, (std::vector<int64_t>{0, 2, 4, 5}));
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(s.out))
    names.insert(entry.path().filename().string());
  EXPECT_EQ(names, (std::set<std::string>{"checkpoint-0", "config.json", "metrics.jsonl",
                                          "model.safetensors", "tokenizer.json",
                                          "trainer-5.safetensors"}));
  const LoadedModel last = load_model(s.out), first = load_model(s.out + "/checkpoint-0");
  EXPECT_TRUE(same_weights(*last.model, *model));
  EXPECT_TRUE(same_weights(*first.model, *fresh(s.config)));
  EXPECT_EQ(last.metadata.at("step"), "5");
}

// Measured while the machine was busy with something else: the few steps that seemed to have time
// become as many as have it.
TEST(Train, FewStepsThatWereForeseenBecomeAsManyAsThereIsTimeFor) {
  for (int64_t foreseen : {2, 3, 5}) {
    SCOPED_TRACE(foreseen);
    const TempFolder folder;
    RunSession s{folder / "out"};
    double clock = 100;
    const TrainJob job = s.job_of_a_minute(clock, foreseen, 0);
    TrainCallbacks callbacks;
    callbacks.on_step = [&](const StepResult&) { clock += 0.5; };
    auto model = fresh(s.config);
    const TrainSummary summary = train(*model, job, callbacks, kGoOn);
    EXPECT_NEAR(clock, 160, 60 * 0.04);
    EXPECT_NEAR(static_cast<double>(summary.last.step), 120, 6);
  }
}

// A machine that gets three times slower, or faster, a third of the way: the run ends when it was
// to, at the end of its schedule, and another process that takes over halfway leaves the same bits.
TEST(Train, EndsInTimeOnAMachineThatChanges) {
  for (double factor : {3.0, 1.0 / 3, 1.0}) {
    SCOPED_TRACE(factor);
    const TempFolder folder;
    RunSession s{folder / "out"};
    s.options.save_every = 30;
    const Corpus held_out = tiny_corpus(40);
    double clock = 100, step_seconds = 0.5;
    std::vector<StepResult> steps;
    std::vector<double> foreseen;
    TrainJob job = s.job_of_a_minute(clock, 120, 10);  // steps of half a second
    job.held_out = &held_out;
    const auto trained = [&](const std::string& out, int64_t stop_after, const Checkpoint* from) {
      auto model = fresh(s.config);
      std::atomic<bool> stop = false;
      TrainCallbacks callbacks;
      callbacks.on_step = [&](const StepResult& r) {
        clock += step_seconds;
        if (clock >= 120) step_seconds = 0.5 * factor;
        foreseen.push_back(clock + r.seconds_left);
        steps.push_back(r);
        stop = r.step == stop_after;
      };
      TrainJob own = job;
      own.out = out;
      if (from) own.options = from->options, own.deadline.reset();
      return train(from ? *from->loaded.model : *model, own, callbacks, stop, from);
    };
    const TrainSummary summary = trained(s.out, 0, nullptr);
    EXPECT_NEAR(clock, 160, 60 * 0.04);
    EXPECT_EQ(summary.last.step, summary.last.steps);
    EXPECT_NEAR(static_cast<double>(summary.last.steps), 40 + 40 / (0.5 * factor), 6);
    EXPECT_DOUBLE_EQ(summary.last.lr, s.options.lr / 10);
    for (size_t i = 12; i < steps.size(); ++i)
      EXPECT_LE(steps[i].lr, steps[i - 1].lr) << "the rate must not jump up, at " << i;
    const Checkpoint end = load_checkpoint(s.out);
    EXPECT_EQ(end.options.steps, summary.last.steps);
    EXPECT_EQ(end.options.replans.empty(), factor == 1);
    // Stopped in the second half, where the steps are others, and resumed without a clock.
    clock = 100, step_seconds = 0.5;
    const int64_t half = summary.last.step / 2 + 10;
    EXPECT_TRUE(trained(folder / "parts", half, nullptr).interrupted);
    const Checkpoint middle = load_checkpoint(folder / "parts");
    const TrainSummary rest = trained(folder / "parts", 0, &middle);
    EXPECT_EQ(rest.last.step, middle.options.steps);
    if (middle.options.steps == end.options.steps)
      EXPECT_TRUE(same_weights(*load_model(folder / "parts").model, *load_model(s.out).model));
  }
}

// Killed between the two files: the newer trainer file is there already, the model still says the
// older step.
TEST(Train, AKillBetweenTheTwoFilesResumesFromTheOlderStep) {
  const TempFolder folder;
  RunSession whole{folder / "whole"}, s{folder / "out"};
  whole.start();
  s.start(2);
  std::filesystem::copy_file(whole.out + "/trainer-5.safetensors",
                             s.out + "/trainer-5.safetensors");
  put(s.out + "/.trainer-3.safetensors.tmp-0123456789abcdef", "torn");
  EXPECT_EQ(load_checkpoint(s.out).step, 2);
  s.resume();
  EXPECT_TRUE(same_weights(*load_model(s.out).model, *load_model(whole.out).model));
  EXPECT_FALSE(std::filesystem::exists(s.out + "/.trainer-3.safetensors.tmp-0123456789abcdef"));
}

TEST(Train, MetricsOfStepsThatWereLostAreRunAgainOnce) {
  const TempFolder folder;
  RunSession s{folder / "out"};
  s.start(2);
  {
    StepLines file(s.out + "/metrics.jsonl", 2);
    StepResult lost;
    for (lost.step = 3; lost.step <= 4; ++lost.step) file.append(metrics_line(lost, {}));
  }
  s.resume();
  EXPECT_EQ(steps_in(s.out + "/metrics.jsonl"), (std::vector<int64_t>{1, 2, 3, 4, 5}));
}

TEST(Train, DoesNotOverwriteAModel) {
  const TempFolder folder;
  RunSession s{folder / "out"};
  s.start(1);
  const std::string before = slurp(s.out + "/model.safetensors");
  EXPECT_FAILS(s.start(), "already holds a model; add resume");
  EXPECT_EQ(slurp(s.out + "/model.safetensors"), before);
}

// Neither in config.json nor by shadowing.
TEST(Train, LeavesAModelOfAnotherFormAlone) {
  for (const char* name : {"pytorch_model.bin", "model-00001-of-00002.safetensors", "some.gguf"}) {
    const TempFolder folder;
    RunSession s{folder / "out"};
    put(s.out + "/" + name, "weights");
    put(s.out + "/config.json", "{}");
    EXPECT_FAILS(s.start(), name);
    EXPECT_EQ(slurp(s.out + "/config.json"), "{}");
    EXPECT_FALSE(std::filesystem::exists(s.out + "/model.safetensors"));
  }
}

// Taken before anything of the checkpoint is read, and before anything is cut off.
TEST(Train, ALockedFolderIsLeftAlone) {
  const TempFolder folder;
  RunSession s{folder / "out"};
  s.start(2);
  const Checkpoint checkpoint = load_checkpoint(s.out);
  const std::string metrics = slurp(s.out + "/metrics.jsonl");
  // as when the other run had gone on
  std::filesystem::rename(s.out + "/trainer-2.safetensors", folder / "away");
  {
    RunLock other;
    other.take(s.out);
    EXPECT_FAILS(s.go(*checkpoint.loaded.model, 0, &checkpoint), "another training run");
    EXPECT_EQ(slurp(s.out + "/metrics.jsonl"), metrics);
    // Whoever holds it may go on.
    std::filesystem::rename(folder / "away", s.out + "/trainer-2.safetensors");
    TrainJob job = s.job();
    job.lock = &other;
    EXPECT_EQ(train(*checkpoint.loaded.model, job, {}, kGoOn, &checkpoint).last.step, 5);
  }
}

TEST(Train, RefusesToResumeSomethingElse) {
  const TempFolder folder;
  EXPECT_FAILS(load_checkpoint(folder / "nothing"), "nothing to resume");
  RunSession s{folder / "out"};
  s.start(2);
  const RunSession same{folder / "out"};
  s.options.lr = 0.5;
  s.options.batch = 2;
  const std::string message = message_of([&] { s.resume(); });
  EXPECT_NE(message.find("batch was 4 and is now 2"), std::string::npos) << message;
  EXPECT_NE(message.find("lr was 0.003 and is now 0.5"), std::string::npos) << message;
  s.options = same.options;
  s.options.steps = 9;
  EXPECT_FAILS(s.resume(), "every learning rate of a cosine schedule depends on");
  s.options = same.options;
  s.corpus = tiny_corpus(599);
  EXPECT_FAILS(s.resume(), "not the one it was trained on");
  std::vector<int32_t> changed(static_cast<size_t>(same.corpus.size()));
  same.corpus.fill(0, same.corpus.size(), changed.data());
  changed[changed.size() / 2] ^= 1;
  s.corpus = Corpus(changed);
  EXPECT_FAILS(s.resume(), "but different ones");
  s.corpus = tiny_corpus();
  EXPECT_EQ(s.resume().last.step, 5);
  EXPECT_FAILS(s.resume(), "is done, at step 5 of 5");
}

TEST(Train, RefusesAnotherModel) {
  const TempFolder folder;
  RunSession s{folder / "out"};
  s.start(1);
  const Checkpoint checkpoint = load_checkpoint(s.out);
  EXPECT_NO_THROW(check_same_model(checkpoint, s.config));
  ModelConfig other = s.config;
  other.width = 64;
  EXPECT_FAILS(check_same_model(checkpoint, other), "32 and is now 64");
}

TEST(Train, AConstantScheduleCanBeLengthened) {
  const TempFolder folder;
  RunSession whole{folder / "whole"}, s{folder / "out"};
  for (RunSession* each : {&whole, &s}) each->options.schedule = ScheduleKind::constant;
  whole.start();
  s.options.steps = 3;
  s.start();
  s.options.steps = 5;
  s.resume();
  EXPECT_TRUE(same_weights(*load_model(s.out).model, *load_model(whole.out).model));
}

// Several budgets of one long run: what was kept before the cooldown goes on to any longer one, and
// ends with the bits that a run of that length has.
TEST(Train, ARunOfAnotherLengthGoesOnFromTheStablePhase) {
  const TempFolder folder;
  RunSession whole{folder / "whole"}, s{folder / "out"};
  for (RunSession* each : {&whole, &s}) {
    each->options.schedule = ScheduleKind::wsd;
    each->options.cooldown = 0.5;
    each->options.warmup = 1;
    each->options.steps = 8;
  }
  whole.start();
  s.options.steps = 6;
  s.options.keep_stable = true;
  s.start();
  const std::string stable = stable_folder(s.out);
  EXPECT_EQ(load_checkpoint(stable).step, 3);
  const std::string longer = folder / "longer";
  std::filesystem::copy(stable, longer, std::filesystem::copy_options::recursive);
  s.options.keep_stable = false;
  s.options.steps = 8;
  EXPECT_FAILS(s.resume(), "it is at step 6, and the cooldown begins after step 3 of 6 steps");
  s.out = longer;
  s.options.steps = 4;  // would have begun to cool down after the second
  EXPECT_FAILS(s.resume(), "after 2 of 4");
  s.options.steps = 8;
  EXPECT_EQ(s.resume().last.step, 8);
  EXPECT_TRUE(same_weights(*load_model(s.out).model, *load_model(whole.out).model));
}

// Stopped after the last stable step, or killed before that was kept.
TEST(Train, TheStablePhaseIsKeptWhereTheRunIsStoppedAtItsEnd) {
  const TempFolder folder;
  RunSession s{folder / "out"};
  s.options.schedule = ScheduleKind::wsd;
  s.options.cooldown = 0.5;
  s.options.warmup = 1;
  s.options.steps = 6;
  s.options.keep_stable = true;
  const std::string stable = stable_folder(s.out);
  EXPECT_TRUE(s.start(3).interrupted);
  EXPECT_EQ(load_checkpoint(stable).step, 3);
  std::filesystem::remove_all(stable);
  EXPECT_EQ(s.resume().last.step, 6);
  EXPECT_EQ(load_checkpoint(stable).step, 3);
}

// On a machine that gets so slow that by the new plan the cooldown would have begun a while ago.
TEST(Train, TheStablePhaseIsKeptWhereANewPlanEndsIt) {
  for (double factor : {4.0, 20.0}) {
    SCOPED_TRACE(factor);
    const TempFolder folder;
    RunSession s{folder / "out"};
    s.options.schedule = ScheduleKind::wsd;
    s.options.keep_stable = true;
    double clock = 100, step_seconds = 0.5;
    const TrainJob job = s.job_of_a_minute(clock, 120, 10);
    TrainCallbacks callbacks;
    callbacks.on_step = [&](const StepResult&) {
      clock += step_seconds;
      if (clock >= 140) step_seconds = 0.5 * factor;
    };
    auto model = fresh(s.config);
    train(*model, job, callbacks, kGoOn);
    const TrainOptions ran = load_checkpoint(s.out).options;
    EXPECT_FALSE(ran.replans.empty());
    EXPECT_LT(stable_until(ran), 96) << "where the first plan had its cooldown";
    EXPECT_EQ(load_checkpoint(stable_folder(s.out)).step, stable_until(ran));
  }
}

TEST(Train, ThreadsAreMentionedButNotRefused) {
  const TempFolder folder;
  RunSession s{folder / "out"};
  s.start(1);
  s.options.threads = 1;
  s.resume();
  ASSERT_EQ(s.log.size(), 1u);
  EXPECT_NE(s.log[0].find("on 1 threads, the run began on 2"), std::string::npos) << s.log[0];
}

TEST(Train, DamagedCheckpointsAreRefusedByName) {
  const TempFolder folder;
  RunSession s{folder / "out"};
  s.start(2);
  const std::string path = s.out + "/trainer-2.safetensors", good = slurp(path);
  const auto resume_fails = [&](const std::string& content) {
    put(path, content);
    const std::string message = message_of([&] { s.resume(); });
    EXPECT_NE(message.find("trainer-2.safetensors"), std::string::npos) << message;
    return message;
  };
  resume_fails(good.substr(0, good.size() - 4));
  resume_fails(good.substr(0, 100));
  resume_fails("");
  std::string nan = good;
  nan.replace(nan.size() - 4, 4, "\xff\xff\xff\x7f");
  EXPECT_NE(resume_fails(nan).find("damaged"), std::string::npos);
  std::string renamed = good;
  const size_t at = renamed.find("\"step\":\"2\"");
  ASSERT_NE(at, std::string::npos);
  renamed.replace(at, 10, "\"step\":\"3\"");
  resume_fails(renamed);
  std::string moment = good;
  const size_t name = moment.find("m.layers.0");
  ASSERT_NE(name, std::string::npos);
  moment[name] = 'n';
  resume_fails(moment);
  std::filesystem::remove(path);
  EXPECT_FAILS(s.resume(), "is missing, which holds the optimizer's moments");
  put(path, good);
  EXPECT_EQ(s.resume().last.step, 5);
}

TEST(Train, APlaceToWriteToIsTriedAndLeftAsItWas) {
  const TempFolder folder;
  check_writable(folder.path());
  check_writable(folder / "a/b");
  EXPECT_TRUE(folder.entries().empty());
  EXPECT_FAILS(check_writable("/proc"), "cannot write to the folder /proc: no file can be made");
  EXPECT_FAILS(check_writable("/proc/a/b"),
               "cannot create the folder /proc/a/b: no file can be made in /proc (");
  put(folder / "file", "");
  EXPECT_FAILS(check_writable(folder / "file/a"), "Not a directory; choose another out");
}

// The limit on the size of files stands for a full disk: both make write() fail halfway.
TEST(Train, AFullDiskLeavesTheOlderCheckpoint) {
  const TempFolder folder;
  RunSession s{folder / "out"};
  s.start(2);
  const std::string model = slurp(s.out + "/model.safetensors");
  const auto names = [&] {
    std::set<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(s.out))
      found.insert(entry.path().filename().string());
    return found;
  };
  const std::set<std::string> before = names();
  struct rlimit old {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  for (rlim_t bytes : {rlim_t{64} << 10, static_cast<rlim_t>(model.size() + 512)}) {
    const struct rlimit small { bytes, old.rlim_max };
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    const std::string message = message_of([&] { s.resume(3); });
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
    EXPECT_NE(message.find("cannot write"), std::string::npos) << message;
    EXPECT_EQ(names(), before);
    EXPECT_EQ(slurp(s.out + "/model.safetensors"), model);
  }
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(s.resume().last.step, 5);
  EXPECT_EQ(steps_in(s.out + "/metrics.jsonl"), (std::vector<int64_t>{1, 2, 3, 4, 5}));
}

}  // namespace
}  // namespace moe::train_test
