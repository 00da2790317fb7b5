-- products
SELECT p.title AS product, c.name AS category, p.description, s.price,
    s.num_in_stock - coalesce(s.num_allocated, 0) AS stock
    FROM catalogue_product p JOIN catalogue_productcategory pc ON pc.product_id = p.id
    JOIN catalogue_category c ON c.id = pc.category_id
    JOIN partner_stockrecord s ON s.product_id = p.id ORDER BY p.id

-- basket
SELECT u.username AS user, b.status, p.title AS product, l.quantity
    FROM basket_line l JOIN basket_basket b ON b.id = l.basket_id
    JOIN catalogue_product p ON p.id = l.product_id LEFT JOIN auth_user u ON u.id = b.owner_id
    ORDER BY l.id

-- vouchers
SELECT u.username AS user, b.status, v.code FROM basket_basket_vouchers bv
    JOIN basket_basket b ON b.id = bv.basket_id JOIN voucher_voucher v ON v.id = bv.voucher_id
    LEFT JOIN auth_user u ON u.id = b.owner_id ORDER BY bv.id

-- orders
SELECT o.number, u.username AS user, o.status, o.total_incl_tax AS total,
    a.line1, a.line4 AS town, coalesce(o.guest_email, '') AS guest FROM order_order o
    JOIN order_shippingaddress a ON a.id = o.shipping_address_id
    JOIN auth_user u ON u.id = o.user_id ORDER BY o.id

-- lines
SELECT o.number, l.title AS product, l.quantity, l.line_price_incl_tax AS price
    FROM order_line l JOIN order_order o ON o.id = l.order_id ORDER BY l.id

-- addresses
SELECT u.username AS user, a.first_name, a.last_name, a.line1,
    a.line2 || a.line3 || a.state || a.title AS rest, a.line4 AS town, a.postcode,
    a.phone_number AS phone, a.notes,
    a.is_default_for_shipping AS ships, a.is_default_for_billing AS bills, a.country_id
    FROM address_useraddress a JOIN auth_user u ON u.id = a.user_id ORDER BY a.id

-- reviews
SELECT p.title AS product, u.username AS user, r.score, r.title, r.body, r.status
    FROM reviews_productreview r JOIN catalogue_product p ON p.id = r.product_id
    LEFT JOIN auth_user u ON u.id = r.user_id ORDER BY r.id

-- votes
SELECT review_id AS review, user_id AS user, delta FROM reviews_vote ORDER BY id

-- lists
SELECT u.username AS user, w.name, w.visibility FROM wishlists_wishlist w
    JOIN auth_user u ON u.id = w.owner_id ORDER BY w.id

-- wishes
SELECT u.username AS user, w.name AS list, p.title AS product, l.quantity
    FROM wishlists_line l JOIN wishlists_wishlist w ON w.id = l.wishlist_id
    JOIN catalogue_product p ON p.id = l.product_id JOIN auth_user u ON u.id = w.owner_id
    ORDER BY l.id

-- alerts
SELECT u.username AS user, p.title AS product, a.status
    FROM customer_productalert a JOIN catalogue_product p ON p.id = a.product_id
    LEFT JOIN auth_user u ON u.id = a.user_id ORDER BY a.id

-- users
SELECT username AS user, password, email, first_name, last_name, is_active
    FROM auth_user ORDER BY id
