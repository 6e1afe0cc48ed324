// Turns the FFNs of a dense model into experts, and prints what that did to each layer.
#include "convert/carve.h"

#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "analyze/pages/conversion_page.h"
#include "cli/conversion.h"
#include "cli/flags.h"
#include "cli/memory.h"
#include "cli/result_type.h"
#include "cli/screen.h"
#include "cli/verbs.h"
#include "cli/verification.h"
#include "convert/options.h"
#include "core/error.h"
#include "core/json.h"
#include "core/words.h"
#include "hub/named_models.h"
#include "model/cost.h"

namespace moe::cli {
namespace {

using Clock = std::chrono::steady_clock;

struct Flags {
  std::string in, out;
  std::optional<DType> compute;  // absent: what the machine multiplies best
  ResultTypeFlags type;
  CalibrationFlags calibration;
  CarveOptions options;
  CompareFlags verify;
  MemoryFlags memory;
  int threads = 0;
  bool sweep = false, json = false;
  Given given;
};

double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

Json layer_json(const CarvedLayer& l) {
  return {{"layer", l.layer},
          {"active", l.active},
          {"shared_mass", l.shared_mass},
          {"error", l.error},
          {"agreement", l.agreement},
          {"largest_load", l.largest_load},
          {"smallest_load", l.smallest_load},
          {"seconds", l.seconds}};
}

void print_layer(const CarvedLayer& l, bool first) {
  if (first) fmt::print("layer  active  shared mass    error  agreement   largest smallest load\n");
  fmt::print("{:5} {:7} {:11.1f}% {:8.3f} {:9.1f}% {:8.2f} {:8.2f}\n", l.layer, l.active, 100 * l.shared_mass, l.error, 100 * l.agreement, l.largest_load,
             l.smallest_load);
}

double mean_of(const std::vector<CarvedLayer>& layers, double CarvedLayer::*what) {
  double sum = 0;
  for (const CarvedLayer& l : layers) sum += l.*what;
  return sum / static_cast<double>(layers.size());
}

// "30 layers", or "20 of 30 layers".
std::string layers_cut(const CarveResult& result, const ModelConfig& dense) {
  const int64_t cut = std::ssize(result.layers);
  return cut == dense.layers ? counted(cut, "layer") : fmt::format("{} of {} layers", cut, dense.layers);
}

struct Seconds {
  double load, carve, total;
  double write() const { return total - load - carve; }
};

Json carve_json(const Flags& f, const CarveResult& result, const ModelConfig& dense, const ModelConfig& target, DType compute, const Seconds& seconds) {
  const CarveOptions& o = f.options;
  const ParamCount params = count_params(target);
  Json layers = Json::array();
  for (const CarvedLayer& l : result.layers) layers.push_back(layer_json(l));
  return {{"method", o.method},
          {"shared", o.shared},
          {"active", o.active},
          {"experts", o.experts},
          {"ffn_active", active_ffn_share(dense, o)},
          {"tokens", result.tokens},
          {"compute", name_of(compute)},
          {"layers", layers},
          {"parameters", params.total()},
          {"active_parameters", params.active()},
          {"seconds", {{"load", seconds.load}, {"carve", seconds.carve}, {"write", seconds.write()}, {"total", seconds.total}}},
          {"out", f.out}};
}

void print_result(const Flags& f, const CarveResult& result, const ModelConfig& dense, const ModelConfig& target, DType compute, const Seconds& seconds) {
  const CarveOptions& o = f.options;
  const ParamCount params = count_params(target);
  fmt::print(" mean         {:11.1f}% {:8.3f} {:9.1f}% {:8.2f} {:8.2f}\n", 100 * mean_of(result.layers, &CarvedLayer::shared_mass),
             mean_of(result.layers, &CarvedLayer::error), 100 * mean_of(result.layers, &CarvedLayer::agreement),
             mean_of(result.layers, &CarvedLayer::largest_load), mean_of(result.layers, &CarvedLayer::smallest_load));
  fmt::print("{}: {} cut into {} slices each, {} always on and {} of {} chosen: {:.1f}% of the FFN works for a token (method {})\n", f.out,
             layers_cut(result, dense), o.experts, o.shared, o.active, o.experts - o.shared, 100 * active_ffn_share(dense, o), o.method);
  fmt::print("{} parameters, {} of them for a token (dense: {}); calibrated on {} tokens in {}\n", human_count(static_cast<double>(params.total())),
             human_count(static_cast<double>(params.active())), human_count(static_cast<double>(count_params(dense).total())), result.tokens, name_of(compute));
  fmt::print("{:.1f} s: {:.1f} s to load, {:.1f} s to carve, {:.1f} s to write\n", seconds.total, seconds.load, seconds.carve, seconds.write());
}

// How the model was made, and what that measured in each layer.
ConversionReport how_made(const Flags& f, const CarveResult& result, const ModelConfig& dense, DType compute) {
  const CarveOptions& o = f.options;
  ConversionReport made{.kind = "Carving"};
  made.steps = {{"method", o.method},
                {"layers", layers_cut(result, dense)},
                {"slices", fmt::format("{} of each FFN: {} always on, {} of the other {} chosen", o.experts, o.shared, o.active, o.experts - o.shared)},
                {"calibration", fmt::format("{}: {} tokens in {} windows, products in {}", f.calibration.text, result.tokens, o.windows, name_of(compute))}};
  for (const CarvedLayer& l : result.layers) made.layers.push_back({l.layer, l.active, l.error, l.agreement});
  return made;
}

struct Written {
  CarveResult result;
  std::vector<ConvertedRow> rows;  // of a GGUF file
  double carved = 0;               // seconds
};

// What is shown of the layers.
enum class Show { layers, progress };

// Carves with these options and writes the result to `out`, whole or not at all. Whether `out` may be written is asked first.
Written carve_and_write(const Flags& f, const LoadedModel& dense, std::span<const int32_t> ids, const CarveOptions& options, const std::string& out,
                        WantedType written, DType compute, Show show) {
  NewModel destination(out);
  Run run(thread_count(f.threads), compute);
  Written done;
  const auto start = Clock::now();
  {
    ProgressLine progress;
    bool first = true;
    done.result = carve(run, *dense.model, ids, options, {.on_layer = [&](const CarvedLayer& l) {
                          fail_if_interrupted(out);
                          if (show == Show::layers) print_layer(l, first);
                          first = false;
                          std::fflush(stdout);
                          progress.show(l.layer + 1, dense.model->config().layers, "layers");
                        }});
  }
  done.carved = since(start);
  done.rows = destination.save(*done.result.model, *dense.tokenizer, written, run.threads);
  return done;
}

// Every number of active experts, everything else the same; the one asked for is written already.
std::vector<SweepStep> sweep_steps(const Flags& f, const LoadedModel& dense, const std::vector<int32_t>& ids, WantedType written, DType compute) {
  std::vector<SweepStep> steps;
  for (int64_t active = 1; active <= f.options.experts - f.options.shared; ++active) {
    CarveOptions options = f.options;
    options.active = active;
    steps.push_back({.name = fmt::format("{} active", active), .ffn_share = active_ffn_share(dense.model->config(), options)});
    if (active == f.options.active) continue;
    steps.back().write = [&f, &dense, &ids, written, compute, options](const std::string& path) {
      carve_and_write(f, dense, ids, options, path, written, compute, Show::progress);
    };
  }
  return steps;
}

int run_carve(Flags& f) {
  const auto start = Clock::now();
  CarveOptions& o = f.options;
  check_result_type(f.type, f.out);
  const DType compute = f.compute.value_or(ops::has_bf16_products() ? DType::bf16 : DType::f32);
  const ModelConfig asked = read_model_config(f.in);
  o.window = calibration_window(f.calibration, asked);
  o.windows = f.calibration.windows;
  check_carve(asked, o);
  check_memory(carving_need(asked, o, compute), f.memory, "lower --windows or --window");
  const LoadedModel dense = load_model(f.in, LoadFor::training);
  const ResultType written = result_type(f.type, f.out, dense, f.in);
  const ModelConfig& config = dense.model->config();
  const std::vector<int32_t> ids = read_calibration(f.calibration, dense);
  std::optional<Verification> verification;
  LoadedModel as_it_is;  // the dense model as it runs: its weights in the types of its file
  if (!f.verify.text.empty()) {
    as_it_is = load_model(f.in, LoadFor::inference);
    verification.emplace(f.verify, NamedModel{f.in, as_it_is});
    verification->check_not_fitted_to(ids);
  }
  const ModelConfig target = carved_config(config, o);
  const double loaded = since(start);
  Written done = carve_and_write(f, dense, ids, o, f.out, written.type, compute, f.json ? Show::progress : Show::layers);
  CarveResult& result = done.result;
  const Seconds seconds{loaded, done.carved, since(start)};
  if (!f.json) {
    print_result(f, result, config, target, compute, seconds);
    print_weights(written, done.rows);
  }
  std::optional<ConversionReport> report;
  if (verification) {
    result.model.reset();  // what was written is measured
    report = verification->measure(f.out, how_made(f, result, config, compute),
                                   f.sweep ? sweep_steps(f, dense, ids, written.type, compute) : std::vector<SweepStep>{});
    verification->write_page(*report);
  }
  if (!f.json) {
    if (report) {
      fmt::print("\n");
      print_report(*report);
    }
    if (!f.verify.html.empty()) fmt::print("the page is in {}\n", f.verify.html);
    return 0;
  }
  Json reply = carve_json(f, result, config, target, compute, seconds);
  reply["weights"] = weights_json(written, done.rows);
  if (report) reply["report"] = moe::to_json(*report);
  print_json(reply);
  return 0;
}

}  // namespace

Action add_carve(CLI::App& app) {
  auto f = std::make_shared<Flags>();
  FieldList list, how = fields(f->options);
  list.add("DENSE", f->in, fmt::format("a dense model: {}. It stays as it is", kModelIs)).positional().required();
  list.add("OUT", f->out, kNewModelHelp).positional().required();
  list.add(how.take({"shared", "active", "experts", "layers"}));
  list.add(fields(f->calibration, "its first tokens show what the neurons do; nothing is trained on it"));
  list.add(std::move(how));
  list.add(fields(f->type));
  list.add_named(
      "compute", {"auto", "f32", "bf16"}, [f] { return f->compute ? std::string(name_of(*f->compute)) : "auto"; },
      [f](const std::string& name) { f->compute = dtype_named(name); },
      "what the calibration's products run in: f32, bf16, or auto: bf16 where the machine multiplies it");
  add_threads(list, f->threads);
  add_memory(list, f->memory);
  list.add("json", f->json, "one JSON object on standard output");
  list.add(verify_fields(f->verify));
  list.group("Measuring what was made");
  list.add("sweep", f->sweep, "with @verify: carve for every other A too, and print and draw perplexity against speed; OUT holds the A asked for");
  add_flags(app, std::move(list), f->given);
  return [f] {
    check_verify_options(f->verify, f->given);
    f->verify.compute.threads = f->threads;
    f->verify.memory = f->memory;
    return run_carve(*f);
  };
}

}  // namespace moe::cli
