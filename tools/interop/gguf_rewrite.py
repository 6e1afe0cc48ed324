"""Writes a GGUF file again with the `gguf` package: the same metadata and tensors, in the reverse
order and at another alignment. What `moe` makes of both must be the same: its writer is then read
by theirs, and its reader reads what theirs writes. Usage: gguf_rewrite.py IN OUT"""

import sys

import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import dequantize

ALIGNMENT = 128


def rewrite(source, target):
    reader = GGUFReader(source)
    writer = GGUFWriter(target, reader.fields["general.architecture"].contents())
    writer.add_custom_alignment(ALIGNMENT)
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        if field.types == [
            GGUFValueType.ARRAY
        ]:  # an empty list, which the package cannot write; byte-level tokenizers have no merges
            continue
        of_list = field.types[1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(key, field.contents(), field.types[0], of_list)
    for tensor in reversed(reader.tensors):
        numbers = dequantize(tensor.data, tensor.tensor_type)
        if not np.isfinite(numbers).all():
            raise SystemExit(f"{source}: tensor {tensor.name} holds numbers that are not finite")
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    again = GGUFReader(target)
    for tensor in reader.tensors:
        other = next(t for t in again.tensors if t.name == tensor.name)
        if (
            other.tensor_type != tensor.tensor_type
            or list(other.shape) != list(tensor.shape)
            or not np.array_equal(other.data, tensor.data)
        ):
            raise SystemExit(f"tensor {tensor.name} did not survive")
    print(f"{source}: {len(reader.tensors)} tensors and the metadata written again")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    rewrite(sys.argv[1], sys.argv[2])
