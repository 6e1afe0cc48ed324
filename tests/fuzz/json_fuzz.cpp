// The JSON parser and the reader over an object, with every getter on every key.
#include <nlohmann/json.hpp>

#include "core/json.h"
#include "fuzz/fuzz.h"

namespace moe::fuzz {
namespace {

template <class T>
void ask(const JsonReader& reader, const std::string& key) {
  accept_or_refuse([&] { reader.get<T>(key); });
}

void walk(const Json& value) {
  if (value.is_array())
    for (const Json& element : value) walk(element);
  if (!value.is_object()) return;
  const JsonReader reader(value, "fuzz");
  accept_or_refuse([&] { reader.refuse_unknown({"hidden_size", "num_experts"}); });
  for (const std::string& key : reader.keys()) {
    ask<bool>(reader, key);
    ask<int64_t>(reader, key);
    ask<double>(reader, key);
    ask<std::string>(reader, key);
    ask<std::vector<int64_t>>(reader, key);
    ask<std::vector<double>>(reader, key);
    ask<std::vector<std::string>>(reader, key);
    accept_or_refuse([&] { reader.get_in<int64_t>(key, -5, 5); });
    accept_or_refuse([&] { reader.get_in<double>(key, 0, 1); });
    accept_or_refuse([&] { reader.get_one_of(key, {"silu", "gelu"}); });
    accept_or_refuse([&] { reader.object(key); });
    accept_or_refuse([&] { reader.objects(key); });
    accept_or_refuse([&] { reader.get<int64_t>(key + "x"); });
    walk(value.at(key));
  }
  reader.refuse_unknown();  // every key was asked for
}

}  // namespace
}  // namespace moe::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace moe;
  fuzz::accept_or_refuse([&] {
    const Json value = parse_json({reinterpret_cast<const char*>(data), size}, "fuzz");
    fuzz::demand(parse_json(value.dump(), "again") == value);
    fuzz::walk(value);
  });
  return 0;
}
