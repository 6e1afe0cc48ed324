#include "jobs/carve.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "analyze/pages/conversion_page.h"
#include "convert/options.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/words.h"
#include "hub/named_models.h"
#include "model/adapters.h"
#include "model/cost.h"

namespace moe {
namespace {

Json carved_layer_json(const CarvedLayer& l) {
  return {{"layer", l.layer},
          {"active", l.active},
          {"shared_mass", l.shared_mass},
          {"error", l.error},
          {"agreement", l.agreement},
          {"largest_load", l.largest_load},
          {"smallest_load", l.smallest_load},
          {"seconds", l.seconds}};
}

// One carving of the model that was loaded, whatever A is.
struct Carving {
  const CarveJob& job;
  const Watch& watch;
  const LoadedModel& dense;
  std::span<const int32_t> ids;  // the calibration text
  WantedType type;
  DType compute;

  struct Written {
    CarveResult result;
    std::vector<ConvertedRow> rows;
    double seconds = 0;  // of carving alone
  };
  // Carves with these options and writes the result to `out`, whole or not at all. Whether `out`
  // may be written is asked first.
  Written write(const CarveOptions& options, const std::string& out,
                const std::function<void(const CarvedLayer&)>& on_layer) const {
    NewModel destination(out, watch);
    Run run(thread_count(job.threads), compute);
    Written done;
    const auto start = Clock::now();
    {
      const Progress progress = watch.begin();
      done.result = carve(run, *dense.model, ids, options, {.on_layer = [&](const CarvedLayer& l) {
                            destination.check_stopped();
                            on_layer(l);
                            progress(l.layer + 1, dense.model->config().layers, "layers");
                          }});
    }
    done.seconds = seconds_since(start);
    done.rows = destination.save(*done.result.model, *dense.tokenizer, type, run.threads);
    done.result.model.reset();  // what was written is measured
    return done;
  }

  // Every number of active experts, everything else the same; the one asked for is written already.
  std::vector<SweepStep> sweep(const CarveOptions& asked) const {
    std::vector<SweepStep> steps;
    for (int64_t active = 1; active <= asked.experts - asked.shared; ++active) {
      CarveOptions options = asked;
      options.active = active;
      steps.push_back({.name = fmt::format("{} active", active),
                       .ffn_share = active_ffn_share(dense.model->config(), options)});
      if (active == asked.active) continue;
      steps.back().write = [this, options](const std::string& path) {
        write(options, path, [](const CarvedLayer&) {});
      };
    }
    return steps;
  }
};

// How the model was made, and what that measured in each layer.
ConversionReport how_carved(const CarveReply& r, const std::string& calibration) {
  const CarveOptions& o = r.options;
  ConversionReport made{.kind = "Carving"};
  made.steps = {
      {"method", o.method},
      {"layers", r.layers_carved()},
      {"slices", r.shape()},
      {"calibration", fmt::format("{}: {} tokens in {} windows, products in {}", calibration,
                                  r.result.tokens, o.windows, name_of(r.compute))}};
  for (const CarvedLayer& l : r.result.layers)
    made.layers.push_back({l.layer, l.active, l.error, l.agreement});
  return made;
}

// "cmoe, kmeans"
std::string methods_that(bool (*do_so)(const CarveOptions&)) {
  std::vector<std::string> names;
  for (const std::string& name : carve_method_names())
    if (do_so({.method = name})) names.push_back(name);
  return listed(names);
}

// What the method's stages do not read.
void check_read(const CarveOptions& o, const Given& given) {
  for (const char* name : {"marks", "profile"})
    if (given.has(name) && !marks_neurons(o))
      fail_usage(
          "{} is of neurons that are marked, and method '{}' marks none ({} do); leave it out",
          field(name), o.method, methods_that(marks_neurons));
  if (given.has("seed") && !draws(o))
    fail_usage("@seed is of what is drawn, and method '{}' draws nothing ({} do); leave it out",
               o.method, methods_that(draws));
}

}  // namespace

FieldList fields(CarveJob& job) {
  FieldList list, how = fields(job.options);
  list.add("DENSE", job.in, fmt::format("a dense model: {}. It stays as it is", kModelIs))
      .positional()
      .required();
  list.add("OUT", job.out, kNewModelHelp).positional().required();
  list.add(how.take({"shared", "active", "experts", "budget", "sketch_bits", "layers"}));
  list.add(fields(job.calibration,
                  "its first tokens show what the neurons do; nothing is trained on it"));
  list.add(std::move(how));
  list.add(fields(job.type));
  list.add_named(
      "compute", {"auto", "f32", "bf16"},
      [&job] { return job.compute ? std::string(name_of(*job.compute)) : "auto"; },
      [&job](const std::string& name) { job.compute = dtype_named(name); },
      "what the calibration's products run in: f32, bf16, or auto: bf16 where the machine "
      "multiplies it");
  add_threads(list, job.threads);
  add_memory(list, job.memory);
  return list;
}

FieldList verify_fields(CarveJob& job) {
  FieldList list;
  list.add(verify_fields(job.verify));
  list.group("Measuring what was made");
  list.add("sweep", job.sweep,
           "with @verify: carve for every other A too, and print and draw perplexity against "
           "speed; OUT holds the A asked for");
  return list;
}

void check_given(const CarveJob& job, const Given& given) {
  check_verify_options(job.verify, given);
  const std::string& method = job.options.method;
  const bool by_neuron = find_carve_method(method).by_neuron;
  bool cut = true;
  for (const char* name : {"shared", "active", "experts"}) {
    if (by_neuron && given.has(name))
      fail_usage("method '{}' has neurons for experts; give @budget in place of {}", method,
                 field(name));
    cut &= given.has(name);
  }
  if (!by_neuron && !cut)
    fail_usage(
        "method '{}' needs @shared, @active and @experts: how an FFN is cut, such as @shared 5 "
        "@active 1 @experts 8 (docs/carving.md); @method sketch has a @budget in their place",
        method);
  if (by_neuron && !given.has("budget"))
    fail_usage("method '{}' needs @budget: the share of the FFN's bytes that a token reads",
               method);
  if (!by_neuron && given.has("budget"))
    fail_usage("method '{}' has no @budget; @shared, @active and @experts say it", method);
  if (!by_neuron && given.has("sketch_bits"))
    fail_usage("method '{}' has no sketch; leave @sketch_bits out", method);
  if (by_neuron && job.sweep)
    fail_usage("@sweep is of methods with slices, and '{}' has a @budget", method);
  check_read(job.options, given);
}

std::string CarveReply::layers_carved() const {
  const int64_t cut = std::ssize(result.layers);
  return cut == dense.layers ? counted(cut, "layer")
                             : fmt::format("{} of {} layers", cut, dense.layers);
}

std::string CarveReply::shape() const {
  const CarveOptions& o = options;
  if (carved.by_neuron())
    return fmt::format(
        "{} neurons of each FFN, {} of them for a token: {:.1f}% of its bytes are "
        "read, those of a sketch of {} bits among them",
        o.experts, o.active, 100 * read_share(), o.sketch_bits);
  return fmt::format("{} of each FFN: {} always on, {} of the other {} chosen", o.experts, o.shared,
                     o.active, o.experts - o.shared);
}

double CarveReply::read_share() const { return share_read(dense, options, type.type.dtype); }

CarveReply carve_model(const CarveJob& job, const Watch& watch, const CarveCallbacks& callbacks) {
  const auto start = Clock::now();
  CarveReply reply{.out = job.out, .options = job.options};
  CarveOptions& o = reply.options;
  check_result_type(job.type, job.out);
  reply.compute = job.compute.value_or(ops::has_bf16_products() ? DType::bf16 : DType::f32);
  // only mapped so far: how much a @budget buys depends on the type that is written
  const LoadedModel dense = open_model(job.in, job.memory.limits);
  reply.type = result_type(job.type, job.out, dense, job.in);
  reply.dense = dense.model->config();
  o.window = calibration_window(job.calibration, reply.dense);
  o.windows = job.calibration.windows;
  o = with_shape(reply.dense, o, reply.type.type.dtype);
  check_carve(reply.dense, o);
  merge_terms(*dense.model, thread_count(job.threads));
  check_memory(carving_need(reply.dense, o, reply.compute), job.memory,
               marked("lower @windows or @window"), watch);
  const std::vector<int32_t> ids = read_calibration(job.calibration, dense, Windows::first).windows;
  std::optional<Verification> verification;
  LoadedModel as_it_is;  // the dense model as it runs: an adapter beside its model's weights
  if (!job.verify.text.empty()) {
    as_it_is = open_model(job.in, job.memory.limits);
    CompareJob how = job.verify;
    how.compute.threads = job.threads;
    how.memory = job.memory;
    verification.emplace(how, NamedModel{job.in, as_it_is}, watch);
    verification->check_not_fitted_to(ids);
  }
  reply.carved = carved_config(reply.dense, o);
  reply.load_seconds = seconds_since(start);
  const Carving carving{job, watch, dense, ids, reply.type.type, reply.compute};
  Carving::Written written = carving.write(o, job.out, callbacks.on_layer);
  reply.result = std::move(written.result);
  reply.rows = std::move(written.rows);
  reply.carve_seconds = written.seconds;
  reply.write_seconds = seconds_since(start) - reply.load_seconds - reply.carve_seconds;
  callbacks.on_written(reply);
  if (verification) {
    reply.report = verification->measure(job.out, how_carved(reply, job.calibration.text),
                                         job.sweep ? carving.sweep(o) : std::vector<SweepStep>{});
    verification->write_page(*reply.report);
  }
  return reply;
}

Json to_json(const CarveReply& r, const Spelling& spell) {
  const CarveOptions& o = r.options;
  const ParamCount params = count_params(r.carved);
  Json layers = Json::array();
  for (const CarvedLayer& l : r.result.layers) layers.push_back(carved_layer_json(l));
  Json reply = {{"method", o.method},
                {"shared", o.shared},
                {"active", o.active},
                {"experts", o.experts},
                {"ffn_active", active_ffn_share(r.dense, o)},
                {"ffn_bytes_read", r.read_share()},
                {"sketch_bits", o.sketch_bits},
                {"tokens", r.result.tokens},
                {"compute", name_of(r.compute)},
                {"layers", layers},
                {"parameters", params.total()},
                {"active_parameters", params.active()},
                {"seconds",
                 {{"load", r.load_seconds},
                  {"carve", r.carve_seconds},
                  {"write", r.write_seconds},
                  {"total", r.seconds()}}},
                {"out", r.out},
                {"weights", weights_json(r.type, r.rows, spell)}};
  if (r.report) reply["report"] = to_json(*r.report);
  return reply;
}

}  // namespace moe
