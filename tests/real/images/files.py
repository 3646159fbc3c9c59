"""Image files of all kinds that the gateway measures: plain, turned, hostile."""
import io
import struct
import zlib

from PIL import Image, PngImagePlugin

SHAPES = [(1, 1), (37, 53), (300, 20), (20, 300)]


def saved(size, kind, mode="RGB", **how):
    out = io.BytesIO()
    Image.new(mode, size).save(out, kind, **how)
    return out.getvalue()


def exif(orientation, order="<", count=1, kind=3, extra=0):
    """EXIF data as cameras write it, with `extra` other tags before and after."""
    entries = [(0x010E + at, 3, 1, 7) for at in range(min(extra, 4))]
    entries.append((0x0112, kind, count, orientation))
    entries += [(0x0131 + at, 3, 1, 7) for at in range(extra)]
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(order + "I", 8)
    body = struct.pack(order + "H", len(entries))
    for tag, kind_, count_, value in entries:
        body += struct.pack(order + "HHI", tag, kind_, count_) + struct.pack(order + "HH", value, 0)
    return b"Exif\0\0" + head + body + b"\0\0\0\0"


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(size, *before, behind=(), mode=2):
    width, height = size
    ihdr = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, mode, 0, 0, 0))
    rows = b"".join(b"\0" + b"\0" * width * 3 for _ in range(height)) if width * height < 1 << 20 else b""
    idat = chunk(b"IDAT", zlib.compress(rows))
    return b"\x89PNG\r\n\x1a\n" + ihdr + b"".join(before) + idat + b"".join(behind) + chunk(b"IEND", b"")


def segment(code, data):
    return bytes([0xFF, code]) + struct.pack(">H", len(data) + 2) + data


def with_segments(jpeg, *segments):
    return jpeg[:2] + b"".join(segments) + jpeg[2:]


def xmp(orientation):
    return (b'<x:xmpmeta><rdf:Description tiff:Make="x" tiff:Orientation="'
            + str(orientation).encode() + b'"/></x:xmpmeta>')


def xmp_segment(orientation):
    return segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0" + xmp(orientation))


def itxt(key, text, compressed=False):
    return chunk(b"iTXt", key + (b"\0\1\0\0\0" + zlib.compress(text) if compressed else b"\0\0\0\0\0" + text))


def gif(screen, frame, at=(0, 0), before=b""):
    """A GIF whose screen and first frame differ."""
    made = saved(frame, "GIF", "P")
    table = 3 << ((made[10] & 7) + 1) if made[10] & 0x80 else 0
    head = made[:6] + struct.pack("<HH", *screen) + made[10:13 + table]
    body = made[13 + table:]
    comma = body.index(b",")
    body = body[:comma] + b"," + struct.pack("<HH", *at) + body[comma + 5:]
    return head + before + body


def every():
    for size in SHAPES:
        name = f"{size[0]}x{size[1]}"
        yield f"png {name}", saved(size, "PNG")
        yield f"jpeg {name}", saved(size, "JPEG")
        yield f"gif {name}", saved(size, "GIF", "P")
        yield f"webp {name}", saved(size, "WEBP")
        yield f"webp lossless {name}", saved(size, "WEBP", lossless=True)
        yield f"webp alpha {name}", saved(size, "WEBP", "RGBA")
    size = (30, 20)
    for mode in ("1", "L", "P", "RGBA", "I;16"):
        yield f"png {mode}", saved(size, "PNG", mode)
    for mode in ("L", "CMYK"):
        yield f"jpeg {mode}", saved(size, "JPEG", mode)
    yield "jpeg progressive", saved(size, "JPEG", progressive=True)
    yield "jpeg comment", saved(size, "JPEG", comment=b"x" * 300)
    more = [Image.new("RGB", size, colour) for colour in ("red", "blue")]
    for kind in ("GIF", "WEBP", "PNG"):
        yield f"animated {kind}", saved(size, kind, save_all=True, append_images=more, duration=50, loop=0)
    for orientation in range(0, 10):
        data = exif(orientation, extra=3)
        yield f"jpeg turned {orientation}", saved(size, "JPEG", exif=data)
        yield f"png turned {orientation}", saved(size, "PNG", exif=data)
        yield f"webp turned {orientation}", saved(size, "WEBP", exif=data)
    yield from turned(size)
    yield from strange(size)


def turned(size):
    jpeg = saved(size, "JPEG")
    big = exif(6, ">")
    yield "jpeg turned, big-endian", saved(size, "JPEG", exif=big)
    yield "jpeg turned, twice marked", with_segments(jpeg, segment(0xE1, b"Exif\0\0" + big))
    yield "jpeg turned, of type long", saved(size, "JPEG", exif=exif(6, kind=4))
    yield "jpeg turned, two of it", saved(size, "JPEG", exif=exif(6, count=2))
    yield "jpeg turned, of type byte", saved(size, "JPEG", exif=exif(6, kind=1))
    yield "jpeg with broken exif", with_segments(jpeg, segment(0xE1, b"Exif\0\0II*"))
    yield "jpeg with no exif in exif", with_segments(jpeg, segment(0xE1, b"Exif\0\0nothing at all"))
    yield "jpeg with exif cut short", with_segments(jpeg, segment(0xE1, exif(6, extra=9)[:40]))
    yield "jpeg turned by xmp", with_segments(jpeg, xmp_segment(6))
    yield "jpeg upright by exif, turned by xmp", with_segments(jpeg, segment(0xE1, exif(1)), xmp_segment(6))
    yield "jpeg turned by the second xmp", with_segments(jpeg, xmp_segment(1), xmp_segment(8))
    yield "jpeg exif in two parts", with_segments(jpeg, segment(0xE1, exif(6)), segment(0xE1, exif(1)))
    yield "jpeg exif behind much", with_segments(
        jpeg, *[segment(0xE2, b"\0" * 400)] * 3, segment(0xE1, exif(8)))
    yield "png turned behind the data", png(size, behind=[chunk(b"eXIf", exif(6)[6:])])
    yield "png turned by xmp", png(size, itxt(b"XML:com.adobe.xmp", xmp(6)))
    yield "png turned by compressed xmp", png(size, itxt(b"XML:com.adobe.xmp", xmp(6), compressed=True))
    yield "png turned by xmp behind the data", png(size, behind=[itxt(b"XML:com.adobe.xmp", xmp(5))])
    yield "png with a text", png(size, chunk(b"tEXt", b"Title\0tiff:Orientation=\"6\""))
    raw = b"\nexif\n      50\n" + exif(6).hex().encode() + b"\n"
    yield "png turned by a raw profile", png(size, chunk(b"tEXt", b"Raw profile type exif\0" + raw))
    yield "png exif over xmp", png(size, chunk(b"eXIf", exif(1)[6:]), itxt(b"XML:com.adobe.xmp", xmp(6)))
    info = PngImagePlugin.PngInfo()
    info.add_text("XML:com.adobe.xmp", xmp(6).decode())
    yield "png turned by xmp in a plain text", saved(size, "PNG", pnginfo=info)
    yield "webp turned by xmp", saved(size, "WEBP", xmp=xmp(6))
    yield "webp exif without its mark", saved(size, "WEBP", exif=exif(6)[6:])
    webp = saved(size, "WEBP", exif=exif(6))
    yield "webp that hides its exif", webp[:20] + bytes([webp[20] & ~8]) + webp[21:]


def strange(size):
    """What clients do not send, or only those that mean ill."""
    jpeg, width, height = saved(size, "JPEG"), *size
    sof = jpeg.index(b"\xff\xc0")
    frame = jpeg[sof:sof + 19]
    wide = frame[:5] + struct.pack(">HH", 60, 7) + frame[9:]
    yield "jpeg of two frames", jpeg[:sof] + wide + jpeg[sof:]
    yield "jpeg of two frames, the small one last", jpeg[:sof] + frame + wide + jpeg[sof + 19:]
    yield "jpeg with padding", jpeg[:2] + b"\xff" * 40 + jpeg[2:]
    # Behind the first segment, of 18 bytes.
    yield "jpeg with stray bytes", jpeg[:20] + b"junk\xff\x00" + jpeg[20:]
    yield "jpeg with an unknown marker", jpeg[:2] + b"\xff\x05" + jpeg[2:]
    yield "jpeg with a lying segment", jpeg[:2] + b"\xff\xe1\xff\xff" + jpeg[2:]
    yield "jpeg with an empty segment", jpeg[:2] + b"\xff\xe4\x00\x02" + b"\xff\xe4\x00\x00" + jpeg[2:]
    yield "jpeg cut in its header", jpeg[:sof + 6]
    yield "jpeg without data", jpeg[:jpeg.index(b"\xff\xda")]
    yield "jpeg of 12 bits", jpeg[:sof + 4] + b"\x0c" + jpeg[sof + 5:]
    yield "jpeg of no width", jpeg[:sof + 7] + b"\0\0" + jpeg[sof + 9:]
    yield "png of no width", png((0, 5))
    yield "png huge", png((1 << 31, 1 << 31))
    yield "png over the limit", png((14000, 14000))
    yield "png of two headers", png(size, chunk(b"IHDR", struct.pack(">IIBBBBB", 30, 19, 8, 2, 0, 0, 0)))
    yield "png with a lying chunk", png(size)[:33] + b"\x7f\xff\xff\xfftEXt" + png(size)[33:]
    yield "png with no chunk", png(size)[:33] + b"\0\0\0\0\x01\x02\x03\x04\0\0\0\0" + png(size)[33:]
    yield "png cut in its header", png(size)[:20]
    yield "gif screen under its frame", gif((3, 3), size)
    yield "gif screen over its frame", gif((99, 88), size)
    yield "gif frame beside its screen", gif(size, size, at=(10, 4))
    yield "gif with extensions", gif((3, 3), size, before=b"!\xfe\x03abc\x02de\x00!\xff\x0bNETSCAPE2.0\x03\x01\0\0\0junk")
    yield "gif with an empty extension", gif((3, 3), size, before=b"!\xf9\x00\x02ab\x00")
    yield "gif without a frame", saved(size, "GIF", "P")[:13] + b";"
    webp = saved(size, "WEBP", "RGBA")
    yield "webp with a wrong size", webp[:26] + b"\x01" + webp[27:]
    yield "webp cut", webp[:24]
    yield "a bitmap", saved(size, "BMP")
    yield "text", b"not an image at all, but long enough to be one"
    yield "nothing", b""
    yield "five bytes", b"\x89PNG\r"
