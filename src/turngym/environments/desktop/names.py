"""Names of desktop tasks, and what they need; imports nothing, so that listing them is quick."""

from __future__ import annotations

TASK_TYPES = (
    "across-compute-into-note", "across-list-files", "across-note-into-clipboard",
    "across-number-into-sheet", "across-rename-as-told", "across-sheet-into-note",
    "calc-difference", "calc-mixed", "calc-product", "calc-quotient", "calc-sum", "calc-tenths",
    "files-bring-up", "files-copy", "files-delete", "files-empty", "files-move", "files-move-all",
    "files-nested", "files-new-folder", "files-rename", "files-rename-folder", "notes-append",
    "notes-clip", "notes-copy-as", "notes-create", "notes-delete", "notes-insert", "notes-number",
    "notes-prepend", "notes-replace", "notes-sort", "notes-upper", "settings-desktops",
    "settings-follow-mouse", "settings-line-numbers", "settings-new-windows",
    "settings-status-bar", "settings-theme", "settings-word-wrap", "sheet-add-row",
    "sheet-change", "sheet-clear", "sheet-fill", "sheet-maximum", "sheet-minimum",
    "sheet-products", "sheet-sum",
)  # fmt: skip
"""Every kind of task; ``turngym.environments.desktop.tasks`` makes their problems."""

GROUNDING_APPS = ("calculator", "editor", "files", "sheet", "windows")
"""Every screen to point at."""

PHONE_TASK_TYPES = (
    "alarm-add", "alarm-switch", "contact-add", "contact-change", "contact-delete", "contact-find",
    "message-number", "message-send", "note-add", "note-change", "note-delete", "setting-choose",
    "setting-switch", "shopping-add", "shopping-check", "shopping-remove",
)  # fmt: skip
"""Every kind of task on the phone-shaped browser."""

PACKAGES = {
    "bwrap": "bubblewrap", "dbus-daemon": "dbus", "galculator": "galculator",
    "gnumeric": "gnumeric", "mousepad": "mousepad", "obconf": "obconf", "openbox": "openbox",
    "pcmanfm": "pcmanfm", "Xvfb": "xvfb",
}  # fmt: skip
"""Program on PATH, and the Debian package that holds it."""
FILES = {
    "/usr/libexec/at-spi2-registryd": "at-spi2-core",
    "/usr/lib/*/gtk-2.0/modules/libatk-bridge.so": "libatk-adaptor",
    "/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf": "fonts-dejavu-core",
    "/usr/share/icons/Adwaita/index.theme": "adwaita-icon-theme",
}
"""What else is needed, and the Debian package that holds it."""
PROGRAMS = tuple(PACKAGES)
