// safetensors: what is written reads back the same, the bytes are fixed, and every way in which a
// file can lie has its refusal.
#include "formats/safetensors.h"

#include <cstring>
#include <numeric>

#include "support/check.h"
#include "support/files.h"

namespace moe::test::safetensors_test {
namespace {

// A file with the given header text and `data` bytes of data.
std::string file_of(const std::string& header, size_t data) {
  const uint64_t size = header.size();
  std::string out(8, '\0');
  std::memcpy(out.data(), &size, 8);
  out += header;
  for (size_t i = 0; i < data; ++i) out += static_cast<char>(i);
  return out;
}
Safetensors parse(const std::string& bytes) {
  return Safetensors::from_bytes(std::as_bytes(std::span(bytes)), "f.safetensors");
}

std::string header_of(const std::string& path) {
  const std::string bytes = slurp(path);
  uint64_t size = 0;
  std::memcpy(&size, bytes.data(), 8);
  return bytes.substr(8, size);
}

class SafetensorsTest : public ::testing::Test {
 protected:
  TempFolder folder_;
  Arena arena_;
  std::string path_ = folder_ / "model.safetensors";
};

// Parts in any order make the file that the whole tensors make.
TEST_F(SafetensorsTest, WriterInPartsGivesTheSameBytes) {
  const Tensor a = draw(arena_, DType::f32, {7, 3}, 1), b = draw(arena_, DType::bf16, {5}, 2),
               none = arena_.alloc(DType::i32, {0, 2});
  const std::vector<SafetensorsItem> items = {
      {"b", b, DType::bf16}, {"a", a, DType::f32}, {"none", none, DType::i32}};
  write_safetensors(path_, items, {{"note", "x"}});
  const std::string parts = folder_ / "parts.safetensors";
  SafetensorsWriter writer(parts,
                           {{"b", Tensor(nullptr, DType::bf16, {5}), DType::bf16},
                            {"a", Tensor(nullptr, DType::f32, {7, 3}), DType::f32},
                            {"none", Tensor(nullptr, DType::i32, {0, 2}), DType::i32}},
                           {{"note", "x"}});
  writer.put("a", 15, a.slice_rows(5, 7));
  writer.put("b", 0, b);
  writer.put("a", 0, a.slice_rows(0, 5));
  writer.commit();
  EXPECT_EQ(slurp(parts), slurp(path_));
}

TEST_F(SafetensorsTest, WriterRefusesWhatIsNoPartAndWhatIsMissing) {
  const Tensor a = draw(arena_, DType::f32, {4, 3}, 1);
  const std::vector<SafetensorsItem> items = {
      {"a", Tensor(nullptr, DType::f32, {4, 3}), DType::f32}};
  {
    SafetensorsWriter writer(path_, items);
    EXPECT_FAILS(writer.put("c", 0, a), "\"c\" was not announced");
    EXPECT_FAILS(writer.put("a", 1, a), "from number 1 on is no part");
    EXPECT_FAILS(writer.put("a", -1, a.slice_rows(0, 1)), "is no part");
    EXPECT_FAILS(writer.put("a", 0, a.slice_cols(0, 2)), "is no part");
    EXPECT_FAILS(writer.put("a", 0, arena_.alloc(DType::i32, {4, 3})), "is no part");
    writer.put("a", 0, a.slice_rows(0, 3));
    EXPECT_FAILS(writer.commit(), "12 bytes of its tensors were never given");
  }
  EXPECT_TRUE(folder_.entries().empty());
  EXPECT_FAILS(SafetensorsWriter(path_, {{"a", a, DType::bf16}}), "not converted");
}

TEST_F(SafetensorsTest, RoundTripOfEveryDTypeAndRank) {
  const Tensor a = draw(arena_, DType::f32, {3}, 1);        // [3]
  const Tensor b = draw(arena_, DType::bf16, {2, 3}, 2);    // [2,3]
  const Tensor c = draw(arena_, DType::f32, {2, 3, 5}, 3);  // [2,3,5]
  const Tensor d = arena_.alloc(DType::i32, {1, 2, 1, 2});  // [1,2,1,2]
  const Tensor e = arena_.alloc(DType::f16, {4});           // [4]
  const Tensor none = arena_.alloc(DType::f32, {0, 7});     // [0,7]
  std::iota(d.as<int32_t>(), d.as<int32_t>() + 4, -2);
  for (int i = 0; i < 4; ++i) static_cast<uint16_t*>(e.data)[i] = static_cast<uint16_t>(0x3C00 + i);
  write_safetensors(path_,
                    {{"b", b, DType::bf16},
                     {"a", a, DType::f32},
                     {"none", none, DType::f32},
                     {"c", c, DType::f32},
                     {"d", d, DType::i32},
                     {"e", e, DType::f16}},
                    {{"note", "a \"quoted\" word"}});
  const Safetensors file = Safetensors::open(path_);
  EXPECT_EQ(file.tensors().size(), 6u);
  EXPECT_EQ(file.metadata(),
            (std::map<std::string, std::string>{{"format", "pt"}, {"note", "a \"quoted\" word"}}));
  for (const auto& [name, want] : std::map<std::string, Tensor>{
           {"a", a}, {"b", b}, {"c", c}, {"d", d}, {"e", e}, {"none", none}}) {
    const Tensor got = file.get(name);
    EXPECT_EQ(describe(got), describe(want)) << name;
    EXPECT_EQ(std::memcmp(got.data, want.data, static_cast<size_t>(want.bytes())), 0) << name;
  }
  EXPECT_FALSE(file.contains("f"));
}

TEST_F(SafetensorsTest, DataIsAlignedWhateverTheOrder) {
  // An odd count of 16-bit numbers in front would put f32 at an odd place.
  const Tensor half = draw(arena_, DType::bf16, {3}, 1), single = draw(arena_, DType::f32, {5}, 2);
  write_safetensors(
      path_,
      {{"half", half, DType::bf16}, {"single", single, DType::f32}, {"half2", half, DType::bf16}});
  const Safetensors file = Safetensors::open(path_);
  EXPECT_EQ(file.names(), (std::vector<std::string>{"single", "half", "half2"}));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(file.get("single").data) % 64, 0u);
  EXPECT_EQ((8 + header_of(path_).size()) % 64, 0u);
}

TEST_F(SafetensorsTest, SameInputSameBytes) {
  const Tensor a = draw(arena_, DType::f32, {4, 4}, 1);
  write_safetensors(folder_ / "1", {{"a", a, DType::f32}, {"b", a, DType::bf16}},
                    {{"x", "1"}, {"y", "2"}});
  write_safetensors(folder_ / "2", {{"a", a, DType::f32}, {"b", a, DType::bf16}},
                    {{"y", "2"}, {"x", "1"}});
  EXPECT_EQ(slurp(folder_ / "1"), slurp(folder_ / "2"));
  EXPECT_EQ(
      header_of(folder_ / "1").substr(0, 138),
      R"({"__metadata__":{"format":"pt","x":"1","y":"2"},"a":{"dtype":"F32","shape":[4,4],"data_offsets":[0,64]},"b":{"dtype":"BF16","shape":[4,4],)");
}

TEST_F(SafetensorsTest, ConvertsWhileWriting) {
  // [40000], more than one block of conversion
  const Tensor wide = draw(arena_, DType::f32, {40'000}, 5);
  const Tensor narrow = arena_.alloc(DType::bf16, {40'000});  // [40000]
  for (int i = 0; i < 40'000; ++i) narrow.as<bf16>()[i] = to_bf16(wide.as<float>()[i]);
  const Tensor half = arena_.alloc(DType::f16, {2});  // [2]
  static_cast<uint16_t*>(half.data)[0] = 0x3C00;
  static_cast<uint16_t*>(half.data)[1] = 0xC100;
  write_safetensors(
      path_, {{"down", wide, DType::bf16}, {"up", narrow, DType::f32}, {"half", half, DType::f32}});
  const Safetensors file = Safetensors::open(path_);
  EXPECT_TRUE(same_bits(file.get("down"), narrow));
  for (int i = 0; i < 40'000; ++i)
    ASSERT_EQ(file.get("up").as<float>()[i], to_f32(narrow.as<bf16>()[i]));
  EXPECT_EQ(file.get("half").as<float>()[0], 1.0f);
  EXPECT_EQ(file.get("half").as<float>()[1], -2.5f);
}

TEST_F(SafetensorsTest, WritesColumnsAndWhatIsProducedOnDemand) {
  const Tensor a = draw(arena_, DType::f32, {4, 6}, 1);  // [4,6]
  const Tensor columns = a.slice_cols(1, 4);             // [4,3]
  Tensor shape_only;
  shape_only.rank = 2;
  shape_only.shape = {6, 4};
  int calls = 0;
  const auto transposed = [&] {
    ++calls;
    const Tensor t = arena_.alloc(DType::f32, {6, 4});  // [6,4]
    for (int r = 0; r < 6; ++r)
      for (int c = 0; c < 4; ++c) set(t, r, c, get(a, c, r));
    return t;
  };
  write_safetensors(path_, {{"columns", columns, DType::f32},
                            {"columns16", columns, DType::bf16},
                            {"t", shape_only, DType::f32, transposed}});
  EXPECT_EQ(calls, 1);
  const Safetensors file = Safetensors::open(path_);
  EXPECT_TRUE(same_bits(file.get("columns"), columns));
  for (int r = 0; r < 4; ++r)
    for (int c = 0; c < 3; ++c)
      EXPECT_EQ(get(file.get("columns16"), r, c), to_f32(to_bf16(get(columns, r, c))));
  EXPECT_EQ(get(file.get("t"), 5, 2), get(a, 2, 5));
}

TEST_F(SafetensorsTest, WriterRefusesWhatCannotBeRead) {
  const Tensor a = draw(arena_, DType::f32, {2}, 1);
  const Tensor n = arena_.alloc_zeroed(DType::i32, {2});
  EXPECT_FAILS(write_safetensors(path_, {{"a", a, DType::f32}, {"a", a, DType::f32}}),
               "two tensors are named \"a\"");
  EXPECT_FAILS(write_safetensors(path_, {{"__metadata__", a, DType::f32}}), "cannot be the name");
  EXPECT_FAILS(write_safetensors(path_, {{"a", Tensor(), DType::f32}}), "absent");
  EXPECT_FAILS(write_safetensors(path_, {{"n", n, DType::f32}}),
               "i32 [2] and cannot be written as f32");
  EXPECT_FAILS(write_safetensors(path_, {{"a", a, DType::f16}}), "cannot be written as f16");
  EXPECT_FAILS(write_safetensors(path_, {{"\xff", a, DType::f32}}), "not valid UTF-8");
  EXPECT_FAILS(write_safetensors(path_, {{"a", a, DType::f32, [&] { return n; }}}),
               "announced as f32 [2] and came as i32 [2]");
  EXPECT_TRUE(folder_.entries().empty());
}

TEST_F(SafetensorsTest, MissingTensorsOfferTheNearest) {
  write_safetensors(path_,
                    {{"layers.0.router.weight", draw(arena_, DType::f32, {2}, 1), DType::f32}});
  EXPECT_FAILS(Safetensors::open(path_).get("layers.0.ruoter.weight"),
               "did you mean \"layers.0.router.weight\"");
  EXPECT_FAILS(Safetensors::open(folder_ / "no"), "No such file");
}

// Files of other writers.
TEST(SafetensorsRead, TakesWhatTheFormatAllows) {
  EXPECT_EQ(parse(file_of("{}", 0)).tensors().size(), 0u);
  const std::string spaced =
      file_of(R"({"s": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]}}   )", 4);
  EXPECT_EQ(describe(parse(spaced).get("s")), "f32 [1]");
  const std::string deep = file_of(
      R"({"d": {"dtype": "F32", "shape": [2, 1, 3, 4, 5], "data_offsets": [0, 480]}})", 480);
  EXPECT_EQ(describe(parse(deep).get("d")), "f32 [2, 1, 3, 20]");
  // Order in the header is free, tensors come in the order of their data.
  const std::string swapped = file_of(
      R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]},"b":{"dtype":"I32","shape":[1],"data_offsets":[0,4]}})",
      8);
  EXPECT_EQ(parse(swapped).names(), (std::vector<std::string>{"b", "a"}));
}

// Buffers of a tower that no model of text reads.
TEST(SafetensorsRead, OtherTypesAreRefusedOnlyWhereTheyAreRead) {
  const Safetensors file = parse(file_of(
      R"({"i":{"dtype":"U64","shape":[2,1],"data_offsets":[0,16]},"b":{"dtype":"BOOL","shape":[3],"data_offsets":[16,19]},)"
      R"("s":{"dtype":"F8_E8M0","shape":[],"data_offsets":[19,20]},"f":{"dtype":"F32","shape":[1],"data_offsets":[20,24]}})",
      24));
  EXPECT_EQ(file.names(), (std::vector<std::string>{"i", "b", "s", "f"}));
  EXPECT_EQ(describe(file.get("f")), "f32 [1]");
  EXPECT_FAILS(file.get("i"), "f.safetensors: tensor \"i\": dtype \"U64\" is not supported (F32,");
  EXPECT_FAILS(file.get("b"), "dtype \"BOOL\" is not supported");
  EXPECT_FAILS(file.get("s"), "dtype \"F8_E8M0\" is not supported");
}

TEST(SafetensorsRead, CopiesWhatLiesAtAnAddressItCannotBeReadFrom) {
  for (size_t pad = 0; pad < 4; ++pad) {
    const std::string bytes = file_of(
        R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})" + std::string(pad, ' '), 8);
    const Safetensors file = parse(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(file.get("a").data) % 4, 0u);
    EXPECT_EQ(std::bit_cast<uint32_t>(file.get("a").as<float>()[1]), 0x07060504u);
  }
}

TEST(SafetensorsRead, RefusesDamagedHeaders) {
  EXPECT_FAILS(parse(""), "f.safetensors: 0 bytes are too few");
  EXPECT_FAILS(parse("1234567"), "7 bytes are too few");
  std::string bytes = file_of("{}", 0);
  bytes[7] = '\x7f';
  EXPECT_FAILS(parse(bytes), "at most 100000000 are allowed");
  bytes = file_of("{}", 0);
  bytes[0] = 3;
  EXPECT_FAILS(parse(bytes), "the header claims 3 bytes, the file has 2");
  EXPECT_FAILS(parse(file_of("", 8)), "does not begin with {");
  EXPECT_FAILS(parse(file_of("[]", 0)), "does not begin with {");
  EXPECT_FAILS(parse(file_of("{\"a\":", 0)), "f.safetensors: header: line 1, column");
  EXPECT_FAILS(parse(file_of("{} {}", 0)), "line 1, column 4");
  EXPECT_FAILS(parse(file_of("{\"a\":3}", 0)), "tensor \"a\": an object is needed");
  EXPECT_FAILS(parse(file_of("{\"__metadata__\":{\"k\":3}}", 0)),
               "\"__metadata__\": \"k\" must be a string");
  EXPECT_FAILS(parse(file_of("{\"__metadata__\":[]}", 0)), "an object is needed");
  const std::string a = R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  EXPECT_FAILS(parse(file_of("{" + a + "," + a + "}", 4)), "\"a\" stands twice");
}

// One tensor of one entry that is wrong, and the part of the message that says how.
struct Lie {
  const char* entry;
  size_t data;
  const char* message;
};
void PrintTo(const Lie& lie, std::ostream* out) { *out << lie.entry; }
class SafetensorsLie : public ::testing::TestWithParam<Lie> {};

TEST_P(SafetensorsLie, IsRefused) {
  const Lie& lie = GetParam();
  EXPECT_FAILS(parse(file_of(std::string(R"({"t":)") + lie.entry + "}", lie.data)), lie.message);
  EXPECT_FAILS(parse(file_of(std::string(R"({"t":)") + lie.entry + "}", lie.data)),
               "f.safetensors: ");
}

INSTANTIATE_TEST_SUITE_P(
    All, SafetensorsLie,
    ::testing::Values(
        Lie{R"({"shape":[1],"data_offsets":[0,4]})", 4, "tensor \"t\": \"dtype\" is missing"},
        Lie{R"({"dtype":"F32","data_offsets":[0,4]})", 4, "\"shape\" is missing"},
        Lie{R"({"dtype":"F32","shape":[1]})", 4, "\"data_offsets\" is missing"},
        Lie{R"({"dtype":"F32","shape":[1],"data_offsets":[0,4],"strides":[1]})", 4,
            "\"strides\" is not known"},
        Lie{R"({"dtype":"F65","shape":[1],"data_offsets":[0,8]})", 8,
            "dtype \"F65\" is not supported"},
        Lie{R"({"dtype":"I64","shape":[1],"data_offsets":[0,4]})", 4, "I64 [1] takes 8 bytes"},
        Lie{R"({"dtype":32,"shape":[1],"data_offsets":[0,4]})", 4, "\"dtype\" must be a string"},
        Lie{R"({"dtype":"F32","shape":"1","data_offsets":[0,4]})", 4,
            "\"shape\" must be an array of whole numbers"},
        Lie{R"({"dtype":"F32","shape":[1.0],"data_offsets":[0,4]})", 4,
            "\"shape\" must be an array of whole numbers"},
        Lie{R"({"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]})", 4,
            "9 dimensions"},
        Lie{R"({"dtype":"F32","shape":[-1,-1],"data_offsets":[0,4]})", 4,
            "[-1, -1] is negative or too large"},
        Lie{R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]})", 0,
            "too large"},
        Lie{R"({"dtype":"F32","shape":[2305843009213693952],"data_offsets":[0,0]})", 0,
            "too large"},
        Lie{R"({"dtype":"F32","shape":[0,4294967296,4294967296],"data_offsets":[0,0]})", 0,
            "too large"},
        Lie{R"({"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,4]})", 4,
            "\"shape\" must be"},
        Lie{R"({"dtype":"F32","shape":[2],"data_offsets":[0,4]})", 4,
            "F32 [2] takes 8 bytes, data_offsets [0, 4] hold 4"},
        Lie{R"({"dtype":"BF16","shape":[1],"data_offsets":[0,4]})", 4, "takes 2 bytes"},
        Lie{R"({"dtype":"F32","shape":[1],"data_offsets":[0,4,8]})", 4, "must be [begin, end]"},
        Lie{R"({"dtype":"F32","shape":[1],"data_offsets":[]})", 4, "must be [begin, end]"},
        Lie{R"({"dtype":"F32","shape":[1],"data_offsets":[4,0]})", 4, "[4, 0] do not lie within"},
        Lie{R"({"dtype":"F32","shape":[1],"data_offsets":[-4,0]})", 4, "[-4, 0] do not lie within"},
        Lie{R"({"dtype":"F32","shape":[1],"data_offsets":[4,8]})", 4,
            "do not lie within the 4 bytes of data"},
        Lie{R"({"dtype":"F32","shape":[1],"data_offsets":[9223372036854775804,9223372036854775807]})",
            4, "do not lie within"},
        Lie{R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})", 9,
            "the last 5 bytes, from offset 4"},
        Lie{R"({"dtype":"F32","shape":[1],"data_offsets":[4,8]})", 8,
            "4 bytes at offset 0 before tensor \"t\" belong to no tensor"},
        Lie{R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]},"u":{"dtype":"F32","shape":[2],"data_offsets":[4,12]})",
            12, "tensor \"u\" at offset 4 overlaps \"t\", which ends at 8"},
        Lie{R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]},"u":{"dtype":"F32","shape":[1],"data_offsets":[4,8]})",
            8, "overlaps"},
        Lie{R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]},"u":{"dtype":"F32","shape":[1],"data_offsets":[8,12]})",
            12, "4 bytes at offset 4"},
        Lie{R"({"dtype":"F32\n","shape":[1],"data_offsets":[0,4]})", 4, "dtype \"F32?\""}));

TEST_F(SafetensorsTest, EveryTruncationIsRefused) {
  write_safetensors(path_, {{"a", draw(arena_, DType::f32, {3}, 1), DType::f32},
                            {"b", draw(arena_, DType::bf16, {2, 2}, 2), DType::bf16}});
  const std::string whole = slurp(path_);
  EXPECT_NO_THROW(parse(whole));
  for (size_t size = 0; size < whole.size(); ++size)
    EXPECT_THROW(parse(whole.substr(0, size)), Error) << size;
  EXPECT_THROW(parse(whole + "x"), Error);
}

class ShardsTest : public SafetensorsTest {
 protected:
  void SetUp() override {
    write_safetensors(folder_ / "model-1.safetensors",
                      {{"a", draw(arena_, DType::f32, {2}, 1), DType::f32},
                       {"b", draw(arena_, DType::f32, {3}, 2), DType::f32}});
    write_safetensors(folder_ / "model-2.safetensors",
                      {{"c", draw(arena_, DType::f32, {4}, 3), DType::f32}});
  }
  void index(const std::string& map) {
    put(folder_ / "model.safetensors.index.json",
        R"({"metadata": {"total_size": 36}, "weight_map": {)" + map + "}}");
  }
};

TEST_F(ShardsTest, ReadAsOne) {
  index(R"("a": "model-1.safetensors", "b": "model-1.safetensors", "c": "model-2.safetensors")");
  const Safetensors model = Safetensors::open(folder_.path());
  EXPECT_EQ(model.names(), (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_TRUE(same_bits(model.get("c"), draw(arena_, DType::f32, {4}, 3)));
}

TEST_F(ShardsTest, WrongIndexesAreRefused) {
  EXPECT_FAILS(Safetensors::open(folder_.path()),
               "neither model.safetensors nor model.safetensors.index.json");
  index(R"("a": "model-1.safetensors", "b": "model-1.safetensors", "c": "model-3.safetensors")");
  EXPECT_FAILS(Safetensors::open(folder_.path()), "model-3.safetensors: No such file");
  index(R"("a": "model-1.safetensors", "c": "model-2.safetensors")");
  EXPECT_FAILS(Safetensors::open(folder_.path()), "tensor \"b\" is not listed");
  index(R"("a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-2.safetensors")");
  EXPECT_FAILS(Safetensors::open(folder_.path()), "as part of model-2.safetensors");
  index(R"("a": "model-1.safetensors", "b": "model-1.safetensors", "d": "model-1.safetensors")");
  EXPECT_FAILS(Safetensors::open(folder_.path()), "tensor \"d\" is not in");
  for (const char* outside : {"../x.safetensors", "/etc/passwd", "", "..", "a/b", "x\\\\u0000y"}) {
    index(std::string(R"("a": ")") + outside + "\"");
    EXPECT_FAILS(Safetensors::open(folder_.path()), "is no plain file name");
  }
  put(folder_ / "model.safetensors.index.json", "{}");
  EXPECT_FAILS(Safetensors::open(folder_.path()), "\"weight_map\" is missing");
}

TEST_F(ShardsTest, ATensorInTwoShardsIsRefused) {
  write_safetensors(folder_ / "model-2.safetensors",
                    {{"a", draw(arena_, DType::f32, {4}, 3), DType::f32}});
  index(R"("a": "model-1.safetensors", "b": "model-1.safetensors", "c": "model-2.safetensors")");
  EXPECT_FAILS(Safetensors::open(folder_.path()), "is there twice");
}

}  // namespace
}  // namespace moe::test::safetensors_test
