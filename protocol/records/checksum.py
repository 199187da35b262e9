"""CRC-32C, the checksum of record batches: `crc32c(data, value=0)`.

It is a function of the C extension in the package crc32c. The package itself reads its version from its metadata, with
parsers of e-mail, CSV and zip files: importing it takes as long as an eighth of a broker's start. So the extension is
loaded alone, if the package has it where versions 2.4 to 2.8 do.
"""

from collections.abc import Callable
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, FileFinder, PathFinder
from typing import cast

_Crc32c = Callable[..., int]


def load_crc32c() -> _Crc32c:
    """Return the function of the extension, or that of the package if the extension is not found."""
    package = PathFinder.find_spec("crc32c")
    for directory in (package.submodule_search_locations or ()) if package is not None else ():
        found = FileFinder(directory, (ExtensionFileLoader, EXTENSION_SUFFIXES)).find_spec("_crc32c")
        if found is not None and found.loader is not None:
            module = found.loader.create_module(found)
            if module is not None:
                found.loader.exec_module(module)
                return cast(_Crc32c, module.crc32c)
    from crc32c import crc32c

    return crc32c


crc32c = load_crc32c()
