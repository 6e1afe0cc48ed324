// Two visitors walk the fields that the stages list themselves: one reads a JsonReader, one writes
// a Json. A new member of a variant or a new parameter needs nothing here; a new enum needs its
// table of names.
#include "moe/recipes/spec_json.h"

#include <cfloat>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/error.h"
#include "moe/recipes/recipes.h"

namespace moe {
namespace {

constexpr int64_t kMaxWhole = INT32_MAX;  // the product of two still fits

using Names = std::vector<std::string>;

// Names of the enumerators, in their order.
const Names& names_of(HashChoice::Map) {
  static const Names names = {"modulo", "random"};
  return names;
}
const Names& names_of(ChosenScores::Renormalise) {
  static const Names names = {"never", "before_drop", "after_drop"};
  return names;
}
const Names& names_of(BufferCapacity::Rounding) {
  static const Names names = {"floor", "floor_to_even", "round", "ceil"};
  return names;
}
const Names& names_of(BufferCapacity::Order) {
  static const Names names = {"choice_major", "token_major", "by_weight", "batch_priority",
                              "random"};
  return names;
}
const Names& names_of(BalanceLoss::Counts) {
  static const Names names = {"first_choice", "all_choices", "unbiased_choices"};
  return names;
}
const Names& names_of(BalanceLoss::Probs) {
  static const Names names = {"scores", "chosen_weights", "normalised_scores", "softmax"};
  return names;
}
const Names& names_of(BalanceLoss::Shares) {
  static const Names names = {"own", "running", "step"};
  return names;
}
// Scopes without a number; a group is {"group": S}.
const Names& names_of(Scope::Kind) {
  static const Names names = {"micro_batch", "sequence"};
  return names;
}

// Sets only what the object names; refuse_unknown() of its JsonReader afterwards sees the rest.
class Reader {
 public:
  explicit Reader(const JsonReader& from) : from_(from) {}

  void operator()(const char* key, float& x) const {
    if (from_.has(key)) x = static_cast<float>(from_.get_in<double>(key, 0, FLT_MAX));
  }
  void operator()(const char* key, int64_t& x) const {
    if (from_.has(key)) x = from_.get_in<int64_t>(key, 0, kMaxWhole);
  }
  void operator()(const char* key, bool& x) const { x = from_.get<bool>(key, x); }
  void operator()(const char* key, Scope& x) const {
    if (!from_.has(key)) return;
    if (!from_.value(key).is_object()) {
      need_name_or_object(key);
      x = {static_cast<Scope::Kind>(from_.get_one_of(key, names_of(Scope::Kind{})))};
      return;
    }
    const JsonReader object = from_.object(key);
    x = {Scope::Kind::group, object.get_in<int64_t>("group", 1, kMaxWhole)};
    object.refuse_unknown();
  }
  template <class E>
  requires std::is_enum_v<E>
  void operator()(const char* key, E& x) const {
    if (from_.has(key)) x = static_cast<E>(from_.get_one_of(key, names_of(x)));
  }
  // An object switches it on and sets its parameters, true switches it on, false off.
  template <class T>
  void operator()(const char* key, std::optional<T>& x) const {
    if (!from_.has(key)) return;
    const Json& value = from_.value(key);
    if (!value.is_object() && !value.is_boolean())
      fail("{}: \"{}\" must be an object of its parameters, true or false", from_.where(), key);
    if (value.is_boolean() && !value.get<bool>()) {
      x.reset();
      return;
    }
    if (!x) x.emplace();
    if (!value.is_object()) return;
    const JsonReader object = from_.object(key);
    Reader inner(object);
    T::fields(inner, *x);
    object.refuse_unknown();
  }
  // A member of a variant; one that is there already keeps the parameters that the object does not
  // name.
  template <class... Members>
  void operator()(const char* key, std::variant<Members...>& x) const {
    static const Names names = {std::string(Members::kName)...};
    if (!from_.has(key)) return;
    if (!from_.value(key).is_object()) {
      need_name_or_object(key);
      choose(x, from_.get_one_of(key, names), std::index_sequence_for<Members...>());
      return;
    }
    const JsonReader object = from_.object(key);
    choose(x, object.get_one_of("type", names), std::index_sequence_for<Members...>());
    Reader inner(object);
    std::visit([&](auto& member) { std::decay_t<decltype(member)>::fields(inner, member); }, x);
    object.refuse_unknown();
  }

 private:
  void need_name_or_object(const char* key) const {
    if (!from_.value(key).is_string())
      fail("{}: \"{}\" must be a name or an object", from_.where(), key);
  }
  template <class Variant, size_t... I>
  static void choose(Variant& x, size_t index, std::index_sequence<I...>) {
    if (x.index() != index) ((I == index ? void(x.template emplace<I>()) : void()), ...);
  }

  const JsonReader& from_;
};

class Writer {
 public:
  explicit Writer(Json& to) : to_(to) {}

  void operator()(const char* key, const float& x) const { to_[key] = shortest_decimal(x); }
  void operator()(const char* key, const int64_t& x) const { to_[key] = x; }
  void operator()(const char* key, const bool& x) const { to_[key] = x; }
  void operator()(const char* key, const Scope& x) const {
    if (x.kind == Scope::Kind::group) to_[key] = {{"group", x.group}};
    else to_[key] = names_of(x.kind).at(static_cast<size_t>(x.kind));
  }
  template <class E>
  requires std::is_enum_v<E>
  void operator()(const char* key, const E& x) const {
    to_[key] = names_of(x).at(static_cast<size_t>(x));
  }
  template <class T>
  void operator()(const char* key, const std::optional<T>& x) const {
    if (!x) {
      to_[key] = false;
      return;
    }
    Json& object = to_[key] = Json::object();
    Writer inner(object);
    T::fields(inner, *x);
  }
  // Its name where it has no parameters.
  template <class... Members>
  void operator()(const char* key, const std::variant<Members...>& x) const {
    Json object = Json::object();
    Writer inner(object);
    const std::string name = std::visit(
        [&](const auto& member) {
          std::decay_t<decltype(member)>::fields(inner, member);
          return std::string(std::decay_t<decltype(member)>::kName);
        },
        x);
    if (object.empty()) {
      to_[key] = name;
      return;
    }
    object["type"] = name;
    to_[key] = std::move(object);
  }

 private:
  Json& to_;
};

template <class Visitor, class Losses>
void visit_losses(Visitor& v, Losses& losses) {
  v("balance", losses.balance);
  v("device", losses.device);
  v("communication", losses.communication);
  v("importance", losses.importance);
  v("load", losses.load);
  v("z_of_clean", losses.z_of_clean);
}

// All but the losses, which stand in an object of their own. `Spec` and `Capacity` may be const.
template <class Visitor, class Spec, class Capacity>
void visit_stages(Visitor& v, Spec& spec, Capacity& eval) {
  v("noise", spec.noise);
  v("logits", spec.logits);
  v("score", spec.score);
  v("select", spec.select);
  v("weigh", spec.weigh);
  v("second", spec.second);
  v("capacity", spec.capacity);
  v("capacity_eval", eval);
}

CustomStages base_of(const JsonReader& reader) {
  if (!reader.has("base")) return {};
  Names names;
  for (const Recipe& recipe : recipes())
    if (recipe.has_router() && recipe.name != "custom") names.emplace_back(recipe.name);
  const Recipe& recipe = find_recipe(names[reader.get_one_of("base", names)]);
  return {recipe.train, recipe.eval_as_trained};
}

}  // namespace

CustomStages stages_from_json(const Json& json, const std::string& where) {
  const JsonReader object(json, where);
  CustomStages out = base_of(object);
  Reader reader(object);
  visit_stages(reader, out.train, out.eval_as_trained);
  if (object.has("losses")) {
    const JsonReader losses = object.object("losses");
    Reader inner(losses);
    visit_losses(inner, out.train.losses);
    losses.refuse_unknown();
  }
  object.refuse_unknown();
  return out;
}

CustomStages parse_stages(const std::string& text, const std::string& where) {
  return stages_from_json(parse_json(text, where), where);
}

Json to_json(const RoutingSpec& train, const CapacityStage& eval_as_trained) {
  Json json = Json::object();
  Writer writer(json);
  visit_stages(writer, train, eval_as_trained);
  Json& losses = json["losses"] = Json::object();
  Writer inner(losses);
  visit_losses(inner, train.losses);
  return json;
}

}  // namespace moe
