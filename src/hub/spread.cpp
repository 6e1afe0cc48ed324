#include "hub/spread.h"

#include "core/error.h"
#include "core/threads.h"

namespace moe {

void bring_experts(const comm::Group& group, void* out, const Tensor& value,
                   const Param::Share& share, int64_t begin, int64_t end) {
  const int64_t unit = value.bytes() / value.shape[0];
  // What process p has of them, in experts of the whole bank.
  const auto of = [&](int p) {
    const Span own = partition(share.of, p, group.size);
    const int64_t first = std::max(begin, own.begin);
    return Span{first, std::max(first, std::min(end, own.end))};
  };
  const auto size = static_cast<size_t>(group.size);
  std::vector<std::span<const std::byte>> send(size);
  std::vector<std::span<std::byte>> receive(size);
  const Span mine = of(group.rank);
  send[0] = {static_cast<const std::byte*>(value.data) + (mine.begin - share.first) * unit,
             static_cast<size_t>((mine.end - mine.begin) * unit)};
  for (int p = 0; group.is_first() && p < group.size; ++p)
    receive[static_cast<size_t>(p)] = {static_cast<std::byte*>(out) + (of(p).begin - begin) * unit,
                                       static_cast<size_t>((of(p).end - of(p).begin) * unit)};
  group.link->exchange(send, receive);
}

Tensor Landing::room_for(const Param& param) {
  Tensor whole = param.whole();
  if (whole.dtype != DType::f32)
    fail("{} lies on several processes and is {}; only f32 can be gathered", param.name,
         name_of(whole.dtype));
  whole.data = nullptr;
  whole.row_bytes = bytes_of(whole.dtype, whole.cols());
  if (!group_.is_first()) return whole;
  std::vector<float>& room = room_[{param.kind, param.is_bias()}];
  if (room.size() < static_cast<size_t>(whole.numel()))
    room.resize(static_cast<size_t>(whole.numel()));
  whole.data = room.data();
  return whole;
}

FileTensor Landing::landed(FileTensor tensor) {
  for (FileTensor::Piece& piece : tensor.pieces) {
    std::unique_ptr<Param>& stand_in = stand_ins_[piece.param];
    if (!stand_in) {
      stand_in = std::make_unique<Param>();
      stand_in->name = piece.param->name;
      stand_in->role = piece.param->role;
    }
    stand_in->value = room_for(*piece.param);
    piece.param = stand_in.get();
  }
  return tensor;
}

void Landing::bring(const FileTensor& tensor) {
  for (const FileTensor::Piece& piece : tensor.pieces) {
    const Param& param = *piece.param;
    const Tensor room = room_for(param);
    const int64_t begin = std::max<int64_t>(0, piece.expert),
                  end = piece.expert < 0 ? param.share.of : piece.expert + 1;
    void* out = group_.is_first()
                    ? static_cast<char*>(room.data) + begin * (room.bytes() / room.shape[0])
                    : nullptr;
    bring_experts(group_, out, param.value, param.share, begin, end);
  }
}

}  // namespace moe
