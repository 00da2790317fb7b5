"""django-oscar, as a program to install and start."""

from __future__ import annotations

from pathlib import Path

from turngym.environments.web.sites.program import Program

SHOP = Program(
    name="shop",
    title="the shop (django-oscar)",
    requirements=(
        "django-oscar==4.2.1", "Django==5.2.19", "asgiref==3.13.0", "babel==2.18.0",
        "django-extra-views==0.16.0", "django-haystack==3.4.0", "django-phonenumber-field==8.5.0",
        "django-tables2==2.7.0", "django-treebeard==7.0.3", "django-widget-tweaks==1.5.1",
        "factory-boy==3.3.3", "Faker==40.54.0", "packaging==26.3", "phonenumbers==9.0.43",
        "pillow==13.0.0", "purl==1.6", "six==1.17.0", "sqlparse==0.6.1",
    ),
    folder=Path(__file__).parent,
    database="site.db",
)  # fmt: skip
