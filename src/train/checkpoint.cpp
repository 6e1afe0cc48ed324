// Writing and reading of trainer-<step>.safetensors, and every check that stands between a
// checkpoint and the run that goes on from it. The model half of the pair is hub/ work; the order
// of writing is explained in the header.
#include "train/checkpoint.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "core/hash.h"
#include "core/json.h"
#include "core/nearest.h"
#include "formats/safetensors.h"
#include "hub/adapter.h"
#include "hub/folder/config_json.h"
#include "hub/foreign.h"
#include "options/read.h"
#include "tensor/on_host.h"
#include "train/metrics.h"
#include "train/schedule.h"

namespace moe {
namespace {

constexpr std::string_view kFormat = "1";
constexpr std::string_view kPrefix = "trainer-", kSuffix = ".safetensors";
constexpr std::string_view
    kTornPrefix = ".trainer-",
    kTornMiddle = ".safetensors.tmp-";  // as core/file.h names what it has not finished

std::string model_path(const std::string& folder) { return folder + "/model.safetensors"; }
std::string trainer_name(int64_t step) { return fmt::format("{}{}{}", kPrefix, step, kSuffix); }
std::string trainer_path(const std::string& folder, int64_t step) {
  return folder + "/" + trainer_name(step);
}

std::string moment_name(const char* which, const Param& param) {
  return fmt::format("{}.{}", which, param.name);
}

// One tensor of what a trainer has and its model does not hold.
struct State {
  std::string name;
  Tensor value;                 // what of it is here
  Tensor whole;                 // of its shape
  std::vector<Span> held = {};  // [P] numbers of the whole that each process has; empty: all
  bool squares = false;
};

template <class F>
void each_state(const Trainer& trainer, F&& f) {
  const Optimizer& optimizer = trainer.optimizer();
  const int processes = trainer.layout().all().size;
  for (size_t i = 0; i < optimizer.params().size(); ++i) {
    const Param& param = *optimizer.params()[i];
    std::vector<Span> held;
    for (int p = 0; processes > 1 && p < processes; ++p) held.push_back(optimizer.moved_by(p, i));
    f(State{moment_name("m", param), optimizer.m(i), param.whole(), held});
    if (optimizer.keeps_squares(i))
      f(State{moment_name("v", param), optimizer.v(i), param.whole(), held, true});
  }
  const auto own = [&](const std::string& name, const Tensor& value) {
    f(State{name, value, value});
  };
  for (const auto& adapter : trainer.trainable().adapters()) {
    own(adapter->a.name, adapter->a.value);
    own(adapter->b.name, adapter->b.value);
  }
  for (const auto& of_tokens : trainer.trainable().token_rows())
    own(of_tokens->rows.name, of_tokens->rows.value);
  // What the model that a run starts from made of its pairs cannot be made again later.
  for (const auto& [name, reference] :
       {std::pair("reference", &trainer.reference()),
        std::pair("reference.held_out", &trainer.held_out_reference())})
    if (!reference->empty()) own(name, reference->view());
}

int64_t parse_step(const std::string& text, const std::string& where) {
  int64_t step = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), step);
  if (error != std::errc{} || end != text.data() + text.size() || step < 0)
    fail("{}: the step is \"{}\", which is no count; the file is damaged", where, printable(text));
  return step;
}

const std::string& need(const std::map<std::string, std::string>& metadata, const std::string& key,
                        const std::string& where) {
  const auto found = metadata.find(key);
  if (found == metadata.end())
    fail(
        "{}: \"{}\" is missing from its metadata; the file is damaged or was not written by a "
        "training run",
        where, key);
  return found->second;
}

Json to_json(const RunSources& s) {
  return {{"data", s.data}, {"eval_data", s.eval_data}, {"teacher", s.teacher}};
}

RunSources sources_from_json(const Json& json, const std::string& where) {
  const JsonReader in(json, where);
  return {in.get<std::vector<std::string>>("data"), in.get<std::vector<std::string>>("eval_data"),
          in.get<std::string>("teacher")};
}

Json to_json(const DataPrint& data) {
  return {{"tokens", data.tokens}, {"hash", data.hash}, {"paths", data.paths}};
}

DataPrint data_from_json(const Json& json, const std::string& where) {
  const JsonReader in(json, where);
  return {in.get<int64_t>("tokens"), in.get<std::string>("hash"),
          in.get<std::vector<std::string>>("paths")};
}

// A wrong option in a file is a damaged file, not wrong usage.
TrainOptions kept_options(const std::string& json, const std::string& where) {
  try {
    TrainOptions options;
    FieldList list = fields(options);
    read_record(list, parse_json(json, where), where);
    validate(options);
    return resolved(options);
  } catch (const Error& e) {
    fail("{}: the options it keeps are damaged: {}", where, e.what());
  }
}

// Trainer files of other steps, and what killed processes left of any, hidden beside them.
void remove_others(const std::string& folder, int64_t step) {
  std::error_code ignored;  // a file that cannot be removed now is removed after the next save
  std::vector<std::filesystem::path> old;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    const bool whole =
        name.starts_with(kPrefix) && name.ends_with(kSuffix) && name != trainer_name(step);
    const bool torn = name.starts_with(kTornPrefix) && name.find(kTornMiddle) != std::string::npos;
    if (whole || torn) old.push_back(entry.path());
  }
  for (const auto& path : old) std::filesystem::remove(path, ignored);
}

void copy_state(const Run& run, const Safetensors& file, const State& state, int rank) {
  const Tensor from = file.get(state.name), to = state.value;
  if (from.dtype != DType::f32 || from.numel() != state.whole.numel() ||
      from.cols() != state.whole.cols())
    fail("{}: {} is {}, but the model's parameter is {}; the file belongs to another model",
         file.path(), state.name, describe(from), describe(state.whole));
  const float* in =
      from.as<float>() + (state.held.empty() ? 0 : state.held[static_cast<size_t>(rank)].begin);
  OnHost host(run);
  float* out = host.write(to).as<float>();
  for (int64_t i = 0; i < to.numel(); ++i) {
    if (!std::isfinite(in[i]) || (state.squares && in[i] < 0))
      fail("{}: {} holds {} at {}, which no run writes; the file is damaged", file.path(),
           state.name, in[i], i);
    out[i] = in[i];
  }
}

// The item of a file that holds all of it, gathered where the processes of `group` have parts of
// it; `room` is the first one's.
SafetensorsItem item_of(const State& state, const comm::Group& group, Device* device,
                        const std::shared_ptr<std::vector<float>>& room) {
  if (device != nullptr && device->owns(state.value.data))
    return {state.name, state.whole, DType::f32, [=] {
              room->resize(static_cast<size_t>(state.value.numel()));
              device->download(room->data(), state.value.data,
                               static_cast<size_t>(state.value.bytes()));
              Tensor whole = state.whole;
              whole.data = room->data();
              return whole;
            }};
  if (state.held.empty()) return {state.name, state.value, DType::f32};
  return {state.name, state.whole, DType::f32, [=] {
            if (group.is_first()) room->resize(static_cast<size_t>(state.whole.numel()));
            std::vector<std::span<const std::byte>> send(state.held.size());
            std::vector<std::span<std::byte>> receive(state.held.size());
            send[0] = {static_cast<const std::byte*>(state.value.data),
                       static_cast<size_t>(state.value.bytes())};
            for (size_t p = 0; group.is_first() && p < receive.size(); ++p)
              receive[p] = std::as_writable_bytes(std::span(*room).subspan(
                  static_cast<size_t>(state.held[p].begin),
                  static_cast<size_t>(state.held[p].end - state.held[p].begin)));
            comm::during([] { return "the moments on their way to the checkpoint"; },
                         [&] { group.link->exchange(send, receive); });
            Tensor whole = state.whole;
            whole.data = room->data();
            return whole;
          }};
}

// The first paths of a list.
std::string few(const std::vector<std::string>& paths) {
  constexpr size_t kShown = 2;
  if (paths.empty()) return "no file";
  std::vector<std::string> shown;
  for (size_t i = 0; i < std::min(kShown, paths.size()); ++i)
    shown.push_back(printable(paths[i], 200));
  return fmt::format(
      "{}{}", fmt::join(shown, ", "),
      paths.size() > kShown ? fmt::format(" and {} more", paths.size() - kShown) : "");
}

std::string hex_of(const Fnv1a& hash) { return fmt::format("{:016x}", hash.value); }

// What training moved, in PEFT's form: adapters, rows of tokens, and whole the routers and norms
// where they are trained too.
void save_adapters(const std::string& folder, const Trainer& trainer, Model& model,
                   const std::string& from, const std::map<std::string, std::string>& metadata) {
  AdapterFile file;
  file.rank = trainer.options().lora_rank;
  file.alpha = trainer.options().lora_alpha;
  file.base_model = from;
  for (const auto& adapter : trainer.trainable().adapters())
    file.matrices.push_back(
        {adapter->base, adapter->a.value, adapter->b.value, adapter->term.experts});
  for (const auto& of_tokens : trainer.trainable().token_rows())
    file.tokens.push_back({of_tokens->base, of_tokens->rows.value, of_tokens->own.ids});
  for (Param* param : model.params())
    if (moves_whole(*param, trainer.options().tune)) file.whole.push_back(param);
  save_adapter(folder, model, file, metadata);
}

}  // namespace

std::string model_print(const Model* model) {
  if (model == nullptr) return "";
  constexpr int64_t kRows = 64, kBytes = 64;
  Fnv1a hash;
  const std::string config = config_to_json(model->config());
  hash.add(config.data(), config.size());
  for (const Param* param : model->params()) {
    if (param->is_share()) continue;
    for (int64_t e = 0; e < param->value.matrices(); ++e) {
      const Tensor matrix = param->expert(e);
      const auto bytes =
          static_cast<size_t>(std::min(kBytes, bytes_of(matrix.dtype, matrix.cols())));
      for (int64_t i = 0, n = std::min(kRows, matrix.rows()); i < n; ++i)
        hash.add(static_cast<const char*>(matrix.data) + i * matrix.rows() / n * matrix.row_bytes,
                 bytes);
    }
  }
  return hex_of(hash);
}

void check_same_teacher(const Checkpoint& c, const Model* teacher) {
  const std::string now = model_print(teacher);
  if (now == c.teacher) return;
  if (now.empty())
    fail_usage("cannot resume {}: it learns from a teacher; give the same @teacher", c.folder);
  if (c.teacher.empty())
    fail_usage(
        "cannot resume {}: it has no teacher; leave @teacher out or start a new run with @from {}",
        c.folder, c.folder);
  fail_usage(
      "cannot resume {}: its teacher is another model than @teacher; give the same one or start a "
      "new run with @from {}",
      c.folder, c.folder);
}

void check_same_held_out(const Checkpoint& c, const std::string& held_out) {
  if (held_out == c.held_out) return;
  fail_usage(
      "cannot resume {}: its held-out preference pairs are not those that it began with, of which "
      "alone the reference is known; give the same @eval_data",
      c.folder);
}

// FNV-1a over the length and up to 4096 runs of 16 tokens, evenly spread; a shorter text is hashed
// whole.
DataPrint data_print(const Corpus& corpus, const Mix& domains) {
  constexpr int64_t kRuns = 4096, kRun = 16;
  Fnv1a hash;
  const int64_t tokens = corpus.size();
  hash.add(static_cast<uint64_t>(tokens));
  const int64_t run = tokens <= kRuns * kRun ? tokens : kRun, runs = run == tokens ? 1 : kRuns;
  std::vector<int32_t> ids(static_cast<size_t>(run));
  std::vector<uint8_t> trained(static_cast<size_t>(run));
  const bool cut = corpus.documents() > 1, masked = corpus.untrained() > 0;
  for (int64_t i = 0; i < runs; ++i) {
    const int64_t start = runs == 1 ? 0 : (tokens - run) * i / (runs - 1);
    corpus.fill(start, run, ids.data());
    for (int32_t id : ids) hash.add(static_cast<uint64_t>(id));
    for (int64_t at = start; cut && at < start + run; at = corpus.document_end(at))
      hash.add(static_cast<uint64_t>(corpus.document_end(at)));
    if (!masked) continue;
    corpus.fill_trained(start, run, trained.data());
    for (uint8_t t : trained) hash.add(uint64_t{t});
  }
  if (cut) hash.add(static_cast<uint64_t>(corpus.documents()));
  if (masked) hash.add(static_cast<uint64_t>(corpus.untrained()));
  if (changes_anything(domains))
    for (const Domain& domain : corpus.domains()) {
      for (const char c : domain.name) hash.add(uint64_t{static_cast<unsigned char>(c)});
      for (const TokenRange& range : domain.ranges) hash.add(static_cast<uint64_t>(range.begin));
    }
  DataPrint print{tokens, hex_of(hash), {}};
  for (const CorpusFile& file : corpus.files()) print.paths.push_back(file.path);
  return print;
}

bool holds_model(const std::string& folder) {
  return std::filesystem::exists(model_path(folder)) || is_adapter(folder);
}

std::optional<int64_t> saved_step(const std::string& folder) {
  if (!holds_model(folder)) return {};
  const std::map<std::string, std::string> metadata =
      is_adapter(folder) ? adapter_metadata(folder)
                         : Safetensors::open(model_path(folder)).metadata();
  const auto step = metadata.find("step");
  if (step == metadata.end()) return {};
  return parse_step(step->second, folder);
}

// By the folder itself where it is there, else by the nearest one above it that is. A file is made
// and removed: root may write to every folder by its rights, and in some, as in /proc, nothing can
// be made all the same.
void check_writable(const std::string& folder) {
  const std::filesystem::path wanted = std::filesystem::absolute(folder);
  std::filesystem::path there = wanted;
  std::error_code unseen;
  while (!std::filesystem::exists(there, unseen) && there.has_relative_path())
    there = there.parent_path();
  std::string reason;
  if (!std::filesystem::is_directory(there, unseen)) {
    reason = std::strerror(ENOTDIR);
  } else {
    std::string name = there / ".moe-XXXXXX";
    const int fd = mkstemp(name.data()), error = errno;
    if (fd >= 0) {
      unlink(name.c_str());
      close(fd);
      return;
    }
    reason = fmt::format("no file can be made in {} ({})", there.string(), std::strerror(error));
  }
  fail("cannot {} the folder {}: {}; choose another @out", there == wanted ? "write to" : "create",
       folder, reason);
}

void make_folder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) fail("cannot create the folder {}: {}; choose another @out", folder, error.message());
}

void check_unused(const std::string& folder) {
  if (holds_model(folder))
    fail("{} already holds a model; add @resume to go on with its training, or choose another @out",
         folder);
  if (const std::optional<std::string> weights = foreign_weights(folder))
    fail("{} holds another model ({}), which a new one beside it would spoil; choose another @out",
         folder, *weights);
}

Checkpoint load_checkpoint(const std::string& folder, const comm::Group& experts,
                           const MemoryLimits& limits) {
  if (!holds_model(folder))
    fail("nothing to resume: {} holds no model.safetensors; leave out @resume to start a new run",
         folder);
  Checkpoint c;
  c.folder = folder;
  // Of adapters what they hang on, with what they bring whole: the rest of them is in the trainer's
  // file.
  c.loaded = is_adapter(folder) ? with_adapter(open_model(adapter_base(folder), limits, experts),
                                               folder, AdapterPart::whole_tensors)
                                : load_model(folder, experts);
  const auto step = c.loaded.metadata.find("step");
  if (step == c.loaded.metadata.end())
    fail(
        "{} is a model, but not one that `moe train` left to be resumed (its metadata has no "
        "step); start a new run from it with @from",
        folder);
  c.step = parse_step(step->second, model_path(folder));
  const std::string path = trainer_path(folder, c.step);
  if (!std::filesystem::exists(path))
    fail(
        "{} is at step {}, but {} is missing, which holds the optimizer's moments; put it back, or "
        "start a new run with @from {}",
        model_path(folder), c.step, path, folder);
  const Safetensors file = Safetensors::open(path);
  const std::string format = need(file.metadata(), "moe_trainer", path);
  if (format != kFormat)
    fail("{} has format \"{}\", this program reads \"{}\"; resume with the version that wrote it",
         path, printable(format), kFormat);
  if (parse_step(need(file.metadata(), "step", path), path) != c.step)
    fail("{} says it is of step {}, not {}; it was renamed or is damaged", path,
         printable(need(file.metadata(), "step", path)), c.step);
  c.options = kept_options(need(file.metadata(), "options", path), path);
  c.data = data_from_json(parse_json(need(file.metadata(), "data", path), path), path);
  const Json progress = parse_json(need(file.metadata(), "progress", path), path);
  c.seconds = JsonReader(progress, path).get_in<double>("seconds", 0, HUGE_VAL);
  if (const auto from = file.metadata().find("from"); from != file.metadata().end())
    c.from = parse_json(from->second, path).get<std::string>();
  if (const auto teacher = file.metadata().find("teacher"); teacher != file.metadata().end())
    c.teacher = teacher->second;
  if (const auto held_out = file.metadata().find("held_out"); held_out != file.metadata().end())
    c.held_out = held_out->second;
  c.tokens = parse_step(need(file.metadata(), "tokens", path), path);
  if (const auto sources = file.metadata().find("sources"); sources != file.metadata().end())
    c.sources = sources_from_json(parse_json(sources->second, path), path);
  return c;
}

TrainOptions resumed_options(const Checkpoint& c, TrainOptions wanted) {
  if (!wanted.min_lr) wanted.min_lr = c.options.min_lr;
  if (!wanted.warmup) wanted.warmup = c.options.warmup;
  if (wanted.steps == c.options.steps) wanted.replans = c.options.replans;
  if (wanted.hot.empty()) wanted.hot = c.options.hot;
  if (wanted.token_ids.empty()) wanted.token_ids = c.options.token_ids;
  return resolved(wanted);
}

void check_same_options(const Checkpoint& c, const TrainOptions& options) {
  const TrainOptions wanted = resumed_options(c, options);
  TrainOptions saved = c.options;
  const bool stable = c.step <= std::min(stable_until(saved), stable_until(wanted));
  if (wanted.steps != saved.steps && !stable && wanted.schedule == saved.schedule) {
    if (saved.schedule == ScheduleKind::wsd)
      fail_usage(
          "cannot resume {} with @steps {}: it is at step {}, and the cooldown begins after step "
          "{} of {} steps, after {} of {}; go on from a checkpoint before both (@keep_stable)",
          c.folder, wanted.steps, c.step, stable_until(saved), saved.steps, stable_until(wanted),
          wanted.steps);
    fail_usage(
        "cannot resume {} with @steps {}: the run was planned for {}, and every learning rate of a "
        "{} schedule depends on that number; keep it, or start a "
        "new run with @from {} (only @schedule constant and wsd can be lengthened)",
        c.folder, wanted.steps, saved.steps, name_of(saved.schedule), c.folder);
  }
  saved.steps = wanted.steps;
  saved.replans = wanted.replans;
  const std::vector<std::string> changes = mathematical_differences(saved, wanted);
  if (!changes.empty())
    fail_usage(
        "cannot resume {}: {}; a resumed run must compute what the uninterrupted one would, so "
        "keep the old values or start a new run with @from {}",
        c.folder, fmt::join(changes, ", "), c.folder);
}

void check_same_text(const Checkpoint& c, const DataPrint& data) {
  if (data.tokens != c.data.tokens || data.hash != c.data.hash)
    fail(
        "cannot resume {}: the training text is not the one it was trained on ({} tokens of {} "
        "then, {} of {} now{}); give the same @data, or start a new run with "
        "@from {}",
        c.folder, c.data.tokens, few(c.data.paths), data.tokens, few(data.paths),
        data.tokens == c.data.tokens ? ", but different ones" : "", c.folder);
}

bool owes_last_evaluation(const Checkpoint& c) {
  const bool evaluates = c.options.hold_out > 0 || !c.sources.eval_data.empty();
  return evaluates && c.step == c.options.steps &&
         ends_without_evaluation(c.folder + "/metrics.jsonl", c.step);
}

void check_resumable(const Checkpoint& c, const TrainOptions& options, const DataPrint& data,
                     bool evaluates) {
  check_same_options(c, options);
  check_same_text(c, data);
  const TrainOptions wanted = resumed_options(c, options);
  if (c.step == wanted.steps && evaluates && owes_last_evaluation(c)) return;
  if (c.step >= wanted.steps)
    fail("nothing to resume: {} is done, at step {} of {}{}", c.folder, c.step, wanted.steps,
         c.options.schedule == ScheduleKind::constant
             ? message("; a larger @steps goes on")
             : message("; @from {} starts a new run from it", c.folder));
}

void check_same_model(const Checkpoint& c, const ModelConfig& wanted) {
  const std::string where = c.folder + "/config.json";
  const Json old = parse_json(config_to_json(c.loaded.model->config()), where),
             now = parse_json(config_to_json(wanted), "the model asked for");
  std::set<std::string> keys;
  for (const Json* side : {&old, &now})
    for (const auto& [key, value] : side->items()) keys.insert(key);
  std::vector<std::string> changes;
  const auto shown = [](const Json& object, const std::string& key) {
    return object.contains(key) ? object.at(key).dump() : std::string("absent");
  };
  for (const std::string& key : keys)
    if (shown(old, key) != shown(now, key))
      changes.push_back(
          fmt::format("{} was {} and is now {}", key, shown(old, key), shown(now, key)));
  if (!changes.empty())
    fail_usage(
        "cannot resume {}: its model is another: {}; leave the model's options out or give the "
        "same ones",
        c.folder, fmt::join(changes, ", "));
}

void restore(Trainer& trainer, const Checkpoint& c) {
  const Safetensors file = Safetensors::open(trainer_path(c.folder, c.step));
  size_t expected = 0;
  each_state(trainer, [&](const State&) { ++expected; });
  if (file.tensors().size() != expected)
    fail(
        "{} holds {} tensors, {} are expected (the moments of each trained parameter{}{}); the "
        "file belongs to another model or is damaged",
        file.path(), file.tensors().size(), expected,
        trainer.trainable().adapters().empty() ? "" : ", and the adapters",
        trainer.reference().empty() ? "" : ", and the reference of pairs");
  each_state(trainer, [&](const State& state) {
    copy_state(trainer.run(), file, state, trainer.layout().all().rank);
  });
  for (const auto& adapter : trainer.trainable().adapters()) {
    adapter->a.touched();
    adapter->b.touched();
  }
  for (const auto& of_tokens : trainer.trainable().token_rows()) of_tokens->rows.touched();
  if (!trainer.has_reference())
    fail_usage(
        "cannot resume {} with @steps {}: it would come to preference pairs of which the reference "
        "was not taken when it began; keep @steps {}, or start a new run with @from {}",
        c.folder, trainer.options().steps, c.options.steps, c.folder);
  trainer.resume_at(c.step, c.seconds);
}

void save_tuned(const std::string& folder, const Trainer& trainer, Model& model,
                const Tokenizer& tokenizer, const std::string& from,
                const std::map<std::string, std::string>& metadata) {
  const ModelsOn cpu(nullptr, {&model});  // which files are written from
  if (trainer.trainable().adapters().empty())
    return save_model(folder, model, tokenizer, DType::f32, metadata);
  std::filesystem::create_directories(folder);
  save_tokenizer(folder, tokenizer);
  save_adapters(folder, trainer, model, from, metadata);
}

void save_checkpoint(const std::string& folder, const Trainer& trainer, Model& model,
                     const Tokenizer& tokenizer, const RunFiles& files) {
  const int64_t step = trainer.steps_done();
  TrainOptions options = trainer.options();
  const comm::Layout& layout = trainer.layout();
  const auto room = std::make_shared<std::vector<float>>();
  std::vector<SafetensorsItem> items;
  each_state(trainer, [&](const State& state) {
    items.push_back(item_of(state, layout.all(), trainer.run().device, room));
  });
  const std::string at = std::to_string(step);
  if (!layout.all().is_first()) {
    produce_in_order(items);
    if (layout.is_of_first_copy()) save_model(folder, model, tokenizer, DType::f32, {{"step", at}});
    return;
  }
  write_safetensors(trainer_path(folder, step), items,
                    {{"moe_trainer", std::string(kFormat)},
                     {"step", at},
                     {"tokens", std::to_string(trainer.tokens_seen())},
                     {"progress", Json{{"seconds", trainer.seconds()}}.dump()},
                     {"options", to_json(fields(options)).dump()},
                     {"from", one_line_json(Json(files.from))},
                     {"teacher", files.teacher},
                     {"held_out", files.held_out},
                     {"sources", one_line_json(to_json(files.sources))},
                     {"data", one_line_json(to_json(files.data))}});
  save_tuned(folder, trainer, model, tokenizer, files.from, {{"step", at}});
  remove_others(folder, step);
}

}  // namespace moe
