// What is written reads back, bit for bit; every lie a file can tell ends in one line that names
// what lies and where.
#include "formats/gguf.h"

#include "formats/gguf_types.h"
#include "support/check.h"
#include "support/files.h"
#include "tensor/quant.h"

namespace moe::test::gguf_test {
namespace {

using Type = GgufEntry::Type;

// The bytes of a file, made by hand: nothing here is checked.
class Bytes {
 public:
  explicit Bytes(uint64_t tensors = 0, uint64_t keys = 0, uint32_t version = 3) : out_("GGUF") {
    number(version).number(tensors).number(keys);
  }

  template <class T>
  Bytes& number(T x) {
    out_.append(reinterpret_cast<const char*>(&x), sizeof x);
    return *this;
  }
  Bytes& text(std::string_view text) {
    number<uint64_t>(text.size());
    out_ += text;
    return *this;
  }
  Bytes& key(std::string_view name, uint32_t type) { return text(name).number(type); }
  // dims in GGUF's order
  Bytes& tensor(std::string_view name, std::initializer_list<uint64_t> dims, uint32_t type,
                uint64_t offset) {
    text(name).number(static_cast<uint32_t>(dims.size()));
    for (const uint64_t d : dims) number(d);
    return number(type).number(offset);
  }
  Bytes& data(size_t size, size_t alignment = 32) {
    out_.append((alignment - out_.size() % alignment) % alignment, '\0');
    out_.append(size, '\x01');
    return *this;
  }
  std::string done() const { return out_; }

 private:
  std::string out_;
};

Gguf parse(const std::string& bytes) {
  return Gguf::from_bytes(std::as_bytes(std::span(bytes)), "f");
}

TEST(Gguf, EveryKindOfValueSurvives) {
  TempFolder folder;
  const std::string path = folder / "a.gguf";
  write_gguf(path,
             {{"b", Type::boolean, true},
              {"i", Type::i32, int64_t{-5}},
              {"u", Type::u32, int64_t{4294967295}},
              {"l", Type::u64, int64_t{1} << 60},
              {"f", Type::f32, 0.5},
              {"s", Type::string, std::string("a\0b", 3)},
              {"ss", Type::strings, std::vector<std::string>{"x", "", "yz"}},
              {"fs", Type::f32s, std::vector<double>{1, -0.25}},
              {"is", Type::i32s, std::vector<int64_t>{-1, 2}},
              {"us", Type::u32s, std::vector<int64_t>{}}},
             {});
  const Gguf file = Gguf::open(path);
  EXPECT_EQ(file.metadata().size(), 10u);
  EXPECT_TRUE(file.flag("b"));
  EXPECT_EQ(file.integer("i", -9, 9), -5);
  EXPECT_EQ(file.integer("u", 0, INT64_MAX), 4294967295);
  EXPECT_EQ(file.integer("l", 0, INT64_MAX), int64_t{1} << 60);
  EXPECT_EQ(file.number("f"), 0.5);
  EXPECT_EQ(file.number("i"), -5);
  EXPECT_EQ(file.text("s"), std::string("a\0b", 3));
  EXPECT_EQ(file.texts("ss"), (std::vector<std::string>{"x", "", "yz"}));
  EXPECT_EQ(file.numbers("fs"), (std::vector<double>{1, -0.25}));
  EXPECT_EQ(file.integers("is"), (std::vector<int64_t>{-1, 2}));
  EXPECT_TRUE(file.integers("us").empty());
  EXPECT_FAILS(file.integer("i", 0, 9), path + ": key \"i\" is -5; it must be 0 to 9");
  EXPECT_FAILS(file.integer("f", 0, 9), "key \"f\" is a number; an integer is needed");
  EXPECT_FAILS(file.text("ss"), "key \"ss\" is a list of texts; a text is needed");
  EXPECT_FAILS(file.flag("c"), "key \"c\" is missing");
  EXPECT_FAILS(file.flag("c\n"), "key \"c?\" is missing");
  // A key of a file may hold anything.
  const std::string bytes = Bytes(0, 1).key("k\n", 0).number(uint8_t{9}).done();
  EXPECT_FAILS(parse(bytes).integer("k\n", 0, 5), "key \"k?\" is 9; it must be 0 to 5");
}

// Several files that are one: the first says how many, their names say which.
TEST(Gguf, TheFirstOfSeveralFilesOpensAll) {
  TempFolder folder;
  Arena arena;
  const Tensor x = draw(arena, DType::f32, {6, 8}, 7);
  const auto write = [&](const std::string& name, int64_t part, int64_t parts,
                         int64_t tensors = 3) {
    const std::string tensor = fmt::format("rows{}", part);
    std::vector<GgufEntry> keys = {{"split.no", Type::i32, part},
                                   {"split.count", Type::i32, parts}};
    if (part == 0) keys.push_back({"split.tensors.count", Type::i32, tensors});
    write_gguf(folder / name, keys, {{tensor, DType::f32, {2, 8}, [&, part](int64_t) {
                                        return x.slice_rows(2 * part, 2 * part + 2);
                                      }}});
  };
  const std::string first = "m-00001-of-00003.gguf", second = "m-00002-of-00003.gguf",
                    third = "m-00003-of-00003.gguf";
  write(first, 0, 3);
  EXPECT_FAILS(Gguf::open(folder / first), second);
  write(second, 1, 3);
  write(third, 2, 3);
  const Gguf file = Gguf::open(folder / first);
  EXPECT_EQ(file.names(), (std::vector<std::string>{"rows0", "rows1", "rows2"}));
  for (int64_t part = 0; part < 3; ++part)
    EXPECT_TRUE(
        same_bits(file.get(fmt::format("rows{}", part)), x.slice_rows(2 * part, 2 * part + 2)));
  EXPECT_FAILS(Gguf::open(folder / second), "give the first, " + folder / first);
  write("m.gguf", 0, 3);
  EXPECT_FAILS(Gguf::open(folder / "m.gguf"), "the name must end in \"-00001-of-00003.gguf\"");
  write(third, 1, 3);
  EXPECT_FAILS(Gguf::open(folder / first), "key \"split.no\" is 1, by its name 2 is needed");
  write(third, 2, 4);
  EXPECT_FAILS(Gguf::open(folder / first), "key \"split.count\" is 4, by its name 3 is needed");
  write(third, 2, 3);
  write(first, 0, 3, 4);
  EXPECT_FAILS(Gguf::open(folder / first), "is 4, but the 3 files hold 3 tensors");
}

// A first file that is there has its others, also where writing ends among them: here a folder
// comes to stand where one of the files shall be.
TEST(Gguf, TheFirstOfSeveralFilesComesLast) {
  TempFolder folder;
  Arena arena;
  const Tensor x = draw(arena, DType::f32, {2, 8}, 7);
  std::string in_the_way;
  const auto produce = [&](int64_t) {
    if (!in_the_way.empty()) {
      std::filesystem::remove(in_the_way);
      std::filesystem::create_directories(in_the_way + "/full");
    }
    return x;
  };
  std::vector<GgufItem> items(3, {"", DType::f32, {2, 8}, [&](int64_t) { return x; }});
  for (size_t i = 0; i < items.size(); ++i) items[i].name = fmt::format("rows{}", i);
  items.back().produce = produce;
  const std::vector<GgufPart> parts = gguf_parts(folder / "m.gguf", items, 64);
  ASSERT_EQ(parts.size(), 3u);
  const auto is_file = [&](size_t i) { return std::filesystem::is_regular_file(parts[i].path); };
  in_the_way = parts[0].path;
  EXPECT_FAILS(write_gguf(parts, {}, items), parts[0].path);
  EXPECT_TRUE(is_file(1) && is_file(2));

  std::filesystem::remove_all(in_the_way);
  in_the_way.clear();
  write_gguf(parts, {}, items);
  EXPECT_EQ(Gguf::open(parts[0].path).names().size(), 3u);
  in_the_way = parts[1].path;
  EXPECT_FAILS(write_gguf(parts, {}, items), parts[1].path);
  EXPECT_FALSE(is_file(0)) << "the earlier one, beside a later one that is not its own";
  EXPECT_TRUE(is_file(2));
}

// One tensor of each type that can be written, from f32 in parts of uneven size, and the same from
// rows that are quantised already.
TEST(Gguf, TensorsSurviveInEveryType) {
  for (const DType dtype :
       {DType::f32, DType::f16, DType::bf16, DType::q8_0, DType::q4_0, DType::q4_1, DType::q5_0,
        DType::q5_1, DType::q4_k, DType::q6_k, DType::iq4_nl, DType::mxfp4, DType::q2_0}) {
    SCOPED_TRACE(name_of(dtype));
    TempFolder folder;
    Arena arena;
    const Tensor x = draw(arena, DType::f32, {3, 5, 512}, 7);  // [E,F,D]
    const Tensor rows = x.reshape({15, 512});
    std::vector<std::byte> want(static_cast<size_t>(15 * bytes_of(dtype, 512)));
    for (int64_t r = 0; r < 15; ++r)
      quantise(want.data() + r * bytes_of(dtype, 512), rows.row<float>(r), dtype, 512);
    const std::vector<std::pair<int64_t, int64_t>> parts = {{0, 1}, {1, 9}, {9, 15}};
    const auto one = draw(arena, DType::f32, {3}, 9);
    const Tensor blocks(want.data(), dtype, {15, 512});
    const std::vector<GgufItem> items = {
        {"odd", DType::f32, {3}, [&](int64_t) { return one; }},
        {"blk.0.ffn_up_exps.weight",
         dtype,
         {3, 5, 512},
         [&](int64_t p) {
           return rows.slice_rows(parts[static_cast<size_t>(p)].first,
                                  parts[static_cast<size_t>(p)].second);
         }},
        {"again", dtype, {15, 512}, [&](int64_t) { return blocks; }}};
    for (const int threads : {1, 3})
      write_gguf(folder / std::to_string(threads), {}, items, threads);
    EXPECT_EQ(slurp(folder / "1"), slurp(folder / "3"));
    const Gguf file = Gguf::open(folder / "1");
    EXPECT_EQ(file.names(), (std::vector<std::string>{"odd", "blk.0.ffn_up_exps.weight", "again"}));
    EXPECT_TRUE(same_bits(file.get("odd"), one));
    const Tensor got = file.get("blk.0.ffn_up_exps.weight"), again = file.get("again");
    EXPECT_EQ(describe(got), fmt::format("{} [3, 5, 512]", name_of(dtype)));
    EXPECT_EQ(std::memcmp(got.data, want.data(), want.size()), 0);
    EXPECT_EQ(std::memcmp(again.data, want.data(), want.size()), 0);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(got.data) % 32, 0u);
  }
}

TEST(Gguf, WhatCannotBeWrittenIsRefusedAndLeavesNothing) {
  TempFolder folder;
  const std::string path = folder / "a.gguf";
  std::vector<float> x(64, 1.0f);
  const Tensor t(x.data(), DType::f32, {2, 32});
  const auto whole = [&](int64_t) { return t; };
  EXPECT_FAILS(write_gguf(path, {}, {{"t", DType::q8_0, {32, 2}, whole}}),
               "tensor \"t\" has rows of 2 numbers, which are not whole blocks of 32, as q8_0");
  EXPECT_FAILS(
      write_gguf(path, {}, {{"t", DType::f32, {2, 32}, whole}, {"t", DType::f32, {2, 32}, whole}}),
      "tensor \"t\" is given twice");
  EXPECT_FAILS(write_gguf(path, {}, {{"t", DType::f32, {3, 32}, whole}}),
               "tensor \"t\" needs 1 more rows of 32 numbers and came as f32 [2, 32]");
  EXPECT_FAILS(write_gguf(path, {}, {{"t", DType::f32, {0}, whole}}), "no shape");
  EXPECT_FAILS(write_gguf(path, {{"k", Type::u32, int64_t{-1}}}, {}),
               "key \"k\" holds -1, which does not fit");
  EXPECT_FAILS(write_gguf(path, {{"k", Type::u32, 0.5}}, {}),
               "key \"k\" was given a value of another type");
  EXPECT_FAILS(write_gguf(path, {{"k", Type::boolean, true}, {"k", Type::boolean, true}}, {}),
               "key \"k\" is given twice");
  for (const float bad : {INFINITY, NAN, 1e6f}) {
    x[33] = bad;
    EXPECT_FAILS(write_gguf(path, {}, {{"t", DType::f16, {2, 32}, whole}}),
                 "tensor \"t\" holds a number that is not finite, or that f16 is too small for");
  }
  EXPECT_TRUE(folder.entries().empty());
}

TEST(Gguf, OtherWritersFilesAreRead) {
  const std::string scalar = Bytes(1, 0, 2).tensor("s", {}, 0, 0).data(4).done();
  EXPECT_EQ(describe(parse(scalar).get("s")), "f32 [1]");
  // The list of tensors need not be in the order of the data.
  const Gguf two = parse(Bytes(2).tensor("b", {8}, 0, 32).tensor("a", {8}, 0, 0).data(64).done());
  EXPECT_EQ(two.names(), (std::vector<std::string>{"a", "b"}));
  // An alignment of 1 puts numbers where they cannot be read from: they are copied.
  std::string odd = Bytes(2, 1)
                        .key("general.alignment", 4)
                        .number(1u)
                        .tensor("c", {3}, 24 + 2, 0)
                        .tensor("d", {2}, 1, 12)
                        .data(16, 1)
                        .done();
  for (int shift = 0; shift < 4; ++shift) {
    const std::string moved = std::string(static_cast<size_t>(shift), 'x') + odd;
    const Gguf file =
        Gguf::from_bytes(std::as_bytes(std::span(moved)).subspan(static_cast<size_t>(shift)), "f");
    EXPECT_EQ(reinterpret_cast<uintptr_t>(file.get("c").data) % 4, 0u);
    EXPECT_EQ(file.get("c").as<int32_t>()[2], 0x01010101);
    EXPECT_EQ(static_cast<const uint16_t*>(file.get("d").data)[1], 0x0101);
  }
  const Gguf empty = parse(Bytes().done());
  EXPECT_TRUE(empty.tensors().empty() && empty.metadata().empty());
}

TEST(Gguf, ViewsSurviveAMove) {
  TempFolder folder;
  std::vector<float> x = {1, 2, 3};
  write_gguf(folder / "a", {},
             {{"t", DType::f32, {3}, [&](int64_t) { return Tensor(x.data(), DType::f32, {3}); }}});
  auto file = std::make_unique<Gguf>(Gguf::open(folder / "a"));
  const Tensor t = file->get("t");
  const Gguf moved = std::move(*file);
  file.reset();
  EXPECT_EQ(t.as<float>()[2], 3);
}

struct Lie {
  std::string bytes;
  const char* message;
};
class Lies : public ::testing::TestWithParam<Lie> {};

TEST_P(Lies, AreRefused) {
  const std::string message = message_of([] { parse(GetParam().bytes); });
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, GetParam().message, message);
  EXPECT_TRUE(message.starts_with("f: ")) << message;
}

std::string one(std::initializer_list<uint64_t> dims, uint32_t type, uint64_t offset, size_t size) {
  return Bytes(1).tensor("t", dims, type, offset).data(size).done();
}
constexpr uint64_t kHuge = uint64_t{1} << 60;

INSTANTIATE_TEST_SUITE_P(
    All, Lies,
    ::testing::Values(
        Lie{"", "no GGUF file"}, Lie{"GGUX", "no GGUF file"},
        Lie{"GGUF", "the version at offset 4 needs 4 bytes, but only 0 follow"},
        Lie{Bytes(0, 0, 1).done(), "version 1 of GGUF at offset 4 is not supported (2 and 3 are)"},
        Lie{Bytes(0, 0, 4).done(), "version 4"}, Lie{Bytes(0, 0, 3u << 24).done(), "big endian"},
        Lie{Bytes(1'000'000'000).done(),
            "tensors at offset 24 are said to be 1000000000, but only 0 bytes follow"},
        Lie{Bytes(0, 1'000'000'000).done(), "metadata keys at offset 24 are said to be 1000000000"},
        Lie{Bytes(UINT64_MAX).done(), "tensors at offset 24"},
        Lie{Bytes(0, UINT64_MAX).done(), "metadata keys at offset 24"},
        Lie{Bytes(0, 1).data(32).done(),
            "key \"\" at offset 32 has type 16843009, which no version"},
        Lie{Bytes(0, 1).number(kHuge).data(32).done(),
            "a metadata key at offset 24 claims to be 1152921504606846976 bytes long"},
        Lie{Bytes(0, 1).number(uint64_t{65535}).data(32).done(),
            "a metadata key at offset 32 needs 65535 bytes"},
        Lie{Bytes(0, 1).key("k", 8).number(kHuge).done(),
            "key \"k\" at offset 45 needs 1152921504606846976 bytes, but only 0 follow"},
        Lie{Bytes(0, 1).key("k", 13).number(uint64_t{0}).done(),
            "key \"k\" at offset 33 has type 13, which no version of GGUF has"},
        Lie{Bytes(0, 1).key("k", 7).number(uint8_t{2}).done(),
            "key \"k\" at offset 37 is 2, a truth value is 0 or 1"},
        Lie{Bytes(0, 1).key("k", 10).number(UINT64_MAX).done(),
            "key \"k\" at offset 37 is 18446744073709551615, more than"},
        Lie{Bytes(0, 1).key("k", 9).number(9u).number(uint64_t{0}).done(),
            "key \"k\" at offset 37 is an array of arrays"},
        Lie{Bytes(0, 1).key("k", 9).number(0u).number(kHuge).done(),
            "the values of key \"k\" at offset 49 are said to be 1152921504606846976, but only 0"},
        Lie{Bytes(0, 1).key("k", 9).number(8u).number(uint64_t{2}).text("a").done(),
            "the values of key \"k\" at offset 49 are said to be 2, but only 9"},
        Lie{Bytes(0, 1).key("k", 9).number(8u).number(uint64_t{1}).number(uint64_t{9}).done(),
            "key \"k\" at offset 57 needs 9 bytes"},
        Lie{Bytes(0, 2).key("k", 0).number(uint8_t{1}).key("k", 0).number(uint8_t{1}).done(),
            "key \"k\" at offset 38 stands twice"},
        Lie{Bytes(0, 1).key("k\n\x80", 99).number(uint64_t{1}).done(), "key \"k??\""},
        Lie{Bytes(0, 1).key("general.alignment", 4).number(0u).done(),
            "key \"general.alignment\" is 0; it must be 1 to 1048576"},
        Lie{Bytes(0, 1).key("general.alignment", 4).number(48u).done(),
            "key \"general.alignment\" is 48, which is no power of two"},
        Lie{Bytes(0, 1).key("general.alignment", 8).text("32").done(),
            "key \"general.alignment\" is a text; an integer is needed"},
        Lie{one({8}, 77, 0, 32),
            "tensor \"t\", listed at offset 24: type 77 is not supported (F32, F16, Q4_0"},
        Lie{one({8}, 40, 0, 32), "tensor \"t\", listed at offset 24: NVFP4 is not supported"},
        Lie{Bytes(1).text("t").number(5u).data(64).done(), "5 dimensions, at most 4"},
        Lie{one({0}, 0, 0, 32), "shape [0] is empty or too large"},
        Lie{one({kHuge * 8, 1}, 0, 0, 32), "is 9223372036854775808, more than"},
        Lie{one({kHuge, 32}, 0, 0, 32), "shape [32, 1152921504606846976] is empty or"},
        Lie{one({kHuge, 4}, 0, 0, 32), "too large"},
        Lie{one({1u << 31, 1u << 31, 2}, 0, 0, 32), "too large"},
        Lie{one({33, 2}, 8, 0, 96), "rows of 33 numbers are not whole blocks of 32, as Q8_0"},
        Lie{one({32, 2}, 12, 0, 96), "not whole blocks of 256, as Q4_K"},
        Lie{one({8}, 0, UINT64_MAX - 31, 32), "more than a signed number"},
        Lie{one({8}, 0, uint64_t{1} << 62, 32),
            "tensor \"t\" at offset 4611686018427387904 of the data takes 32 bytes, which do not "
            "lie within the 32"},
        Lie{one({8}, 0, 16, 64),
            "offset 16 of the data does not begin at a multiple of the alignment 32"},
        Lie{one({9}, 0, 0, 32),
            "takes 36 bytes, which do not lie within the 32 bytes from offset 64 to the end"},
        Lie{one({8}, 0, 32, 32), "takes 32 bytes, which do not lie within"},
        Lie{one({8}, 0, 32, 64), "32 bytes before it belong to no tensor"},
        Lie{one({8}, 0, 0, 64),
            "the last 32 bytes, from offset 32 of the data, belong to no tensor"},
        Lie{Bytes(2).tensor("t", {9}, 0, 0).tensor("u", {8}, 0, 32).data(64).done(),
            "\"u\" at offset 32 of the data overlaps \"t\", which ends at 36"},
        Lie{Bytes(2).tensor("t", {8}, 0, 0).tensor("u", {8}, 0, 0).data(32).done(), "overlaps"},
        Lie{Bytes(2).tensor("t", {8}, 0, 0).tensor("t", {8}, 0, 32).data(64).done(),
            "tensor \"t\" is there twice"},
        Lie{Bytes(1).tensor("t", {8}, 0, 0).done(),
            "the file ends at offset 57, before the data of its tensors"}));

TEST(Gguf, EveryTruncationIsRefused) {
  TempFolder folder;
  std::vector<float> x(8, 1.0f);
  const auto whole = [&](int64_t) { return Tensor(x.data(), DType::f32, {8}); };
  write_gguf(folder / "a",
             {{"k", Type::strings, std::vector<std::string>{"a", "bc"}}, {"l", Type::f32, 1.0}},
             {{"t", DType::f32, {8}, whole}, {"u", DType::bf16, {8}, whole}});
  const std::string bytes = slurp(folder / "a");
  EXPECT_NO_THROW(parse(bytes));
  // The padding at the end may be missing.
  for (size_t size = 0; size < bytes.size() - 16; ++size)
    EXPECT_THROW(parse(bytes.substr(0, size)), Error) << size;
}

}  // namespace
}  // namespace moe::test::gguf_test
